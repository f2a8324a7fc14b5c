package wire

import "time"

// Travelled names a pulled proposal in a repository of the daemon's host.
type Travelled struct {
	Dir    string `json:"dir"`    // absolute, in the repository's work tree
	Remote string `json:"remote"` // the name of the remote that it was pulled from
	Name   string `json:"name"`   // of the sandbox that it is of
}

// TravelledDiff asks how the files of a proposal that was pulled differ from what it began
// with.
type TravelledDiff struct {
	Travelled
	GitDiffRequest
}

// TravelledApply asks for a proposal that was pulled to be put onto a branch.
type TravelledApply struct {
	Travelled
	GitApplyRequest
}

// DefaultPacked is how many bytes packed layers may have, unless it is said.
const DefaultPacked = 64 << 20

// DefaultArtifact is the same of an artifact in a registry.
const DefaultArtifact = 4 << 30

// Artifact names packed layers in an OCI registry, and their digests.
type Artifact struct {
	Repository string      `json:"repository"` // REGISTRY/REPOSITORY
	Digest     string      `json:"digest"`     // of its manifest
	Layers     []LayerBlob `json:"layers"`     // in the order in which they are pushed and pulled
}

// LayerBlob is a layer as it lies in a registry.
type LayerBlob struct {
	Layer  string `json:"layer"`            // its digest as a tar archive
	Digest string `json:"digest,omitempty"` // of the archive by zstd; "" is not known yet
	Size   int64  `json:"size,omitempty"`   // of that, in bytes
}

// Packing is what layers of a sandbox travel.
type Packing struct {
	// those above what it began with, with what each was when it was packed last
	Layers []LayerBlob `json:"layers"`
}

// PackRequest asks for one of them, packed.
type PackRequest struct {
	Name  string `json:"name"`  // of the sandbox
	Layer string `json:"layer"` // as in Packing
}

// SendRequest asks for the references to push for a proposal.
type SendRequest struct {
	Name     string `json:"name"`                // of the sandbox
	Remote   string `json:"remote"`              // the name of a remote of its repository
	Layers   bool   `json:"layers,omitempty"`    // its snapshots' layers as well, packed
	MaxBytes int64  `json:"max_bytes,omitempty"` // how many bytes the packed layers may have; 0 is 64 MiB
	// where the layers are already, which then are not packed; with layers
	Artifact *Artifact `json:"artifact,omitempty"`
}

// Sending lists what to push.
type Sending struct {
	Top     string    `json:"top"`               // of the work tree that it is pushed from
	Refs    []SendRef `json:"refs"`              // each to one of the same name
	Bytes   int64     `json:"bytes,omitempty"`   // of packed layers
	Foreign bool      `json:"foreign,omitempty"` // the remote has a proposal of this name from another host
}

// SendRef is a reference that is to be pushed to one of the same name.
type SendRef struct {
	Ref  string `json:"ref"`            // its full name
	To   string `json:"to"`             // the object that it names
	Seen string `json:"seen,omitempty"` // what the remote's was when it was last seen; "" is never
}

// SentRequest records a push.
type SentRequest struct {
	Travelled
	Refs []SendRef `json:"refs"` // that were pushed
}

// ReceiveRequest asks for a look at a proposal that the user's git has fetched to the
// references of StagingRef, and to take it in.
type ReceiveRequest struct {
	Travelled
	// the verifier key of the log that is trusted from now on, where the log of that name
	// was signed by another one before
	Key    string `json:"key,omitempty"`
	Layers bool   `json:"layers,omitempty"` // make a sandbox of the layers that were fetched
	As     string `json:"as,omitempty"`     // what that is called; "" is as the proposal
}

// Received is a pulled proposal, with what was found out about it here.
type Received struct {
	Travelled
	Proposal  string    `json:"proposal"`             // its commit
	Sandbox   string    `json:"sandbox"`              // the id of the proposer's sandbox
	Title     string    `json:"title,omitempty"`      // what it is for, in the proposer's words
	Time      time.Time `json:"time"`                 // when it says that it was proposed
	Base      string    `json:"base"`                 // the commit that it stands on
	Start     string    `json:"start"`                // what it began with: base, or a commit on it
	Work      string    `json:"work"`                 // the commit that is proposed
	From      string    `json:"from,omitempty"`       // the branch that base was the tip of, in the proposer's words
	Commits   int       `json:"commits"`              // how many work has and start does not
	Files     int       `json:"files"`                // that differ
	Added     int       `json:"added"`                // lines
	Deleted   int       `json:"deleted"`              // lines
	Marks     []GitMark `json:"marks"`                // what the host would later run or trust, computed here
	Signer    Signer    `json:"signer"`               // whose log its records are of
	Records   int64     `json:"records"`              // of its ledger, all verified
	Bound     bool      `json:"bound"`                // the log says that this very commit was proposed
	Differs   []string  `json:"differs,omitempty"`    // where it says something else than what was found here
	Summary   string    `json:"summary"`              // the beginning of the report
	Report    string    `json:"report"`               // for people, in Markdown; made here
	HasLayers bool      `json:"has_layers,omitempty"` // layers came along
	// where they are, where they were asked for and are elsewhere: no sandbox is made yet
	Artifact *Artifact `json:"artifact,omitempty"`
	Made     *Sandbox  `json:"made,omitempty"`     // the sandbox that was made of them
	Warnings []string  `json:"warnings,omitempty"` // what people should know besides
}

// Signer is the signer of the log of a proposal.
type Signer struct {
	Origin  string    `json:"origin"`            // the log's name
	Key     string    `json:"key"`               // the verifier key that signed
	Since   time.Time `json:"since,omitzero"`    // when it was first seen here; none for this host's own
	First   bool      `json:"first,omitempty"`   // which is now
	Changed string    `json:"changed,omitempty"` // the key that was trusted until now
}

// ReceivedList lists the proposals that were pulled into a repository.
type ReceivedList struct {
	Proposals []ReceivedItem `json:"proposals"` // by remote and name
}

// ReceivedItem is one of them.
type ReceivedItem struct {
	Remote   string `json:"remote"`   // the name of the remote
	Name     string `json:"name"`     // of the sandbox that it is of
	Proposal string `json:"proposal"` // its commit
	Work     string `json:"work"`     // the commit that is proposed
}

// TravelRef is the reference by which something of a sandbox travels: kind is heads,
// proposals or layers.
func TravelRef(kind, name string) string {
	if kind == "heads" {
		return "refs/heads/coppice/" + name
	}
	return "refs/coppice/" + kind + "/" + name
}

// StagingRef is the reference to which the user's git fetches it, before anybody looked at it.
func StagingRef(remote, name, kind string) string {
	return "refs/coppice/staging/" + remote + "/" + name + "/" + kind
}

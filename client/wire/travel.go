package wire

import "time"

// Travelled names a pulled proposal in a repository of the daemon's host.
type Travelled struct {
	Dir    string `json:"dir"`    // absolute, in the repository's work tree
	Remote string `json:"remote"` // the remote that it was pulled from
	Name   string `json:"name"`   // name of the proposed sandbox
}

// TravelledDiff asks for the difference between the files of a pulled proposal and its start.
type TravelledDiff struct {
	Travelled
	GitDiffRequest
}

// TravelledApply asks to apply a pulled proposal to a branch.
type TravelledApply struct {
	Travelled
	GitApplyRequest
}

// DefaultPacked is the default limit for packed layers in git, in bytes.
const DefaultPacked = 64 << 20

// DefaultArtifact is the default limit for packed layers in a registry, in bytes.
const DefaultArtifact = 4 << 30

// Artifact describes packed layers in an OCI registry.
type Artifact struct {
	Repository string      `json:"repository"` // REGISTRY/REPOSITORY
	Digest     string      `json:"digest"`     // digest of its manifest
	Layers     []LayerBlob `json:"layers"`     // in the order in which they are pushed and pulled
}

// LayerBlob is a packed layer in a registry.
type LayerBlob struct {
	Layer  string `json:"layer"`            // digest of the layer as a tar archive
	Digest string `json:"digest,omitempty"` // digest of the archive compressed with zstd; "" if not known yet
	Size   int64  `json:"size,omitempty"`   // size of the compressed archive, in bytes
}

// Packing lists the layers of a sandbox to transfer.
type Packing struct {
	// layers above its first snapshot, with digest and size if they were packed before
	Layers []LayerBlob `json:"layers"`
}

// PackRequest asks for one packed layer.
type PackRequest struct {
	Name  string `json:"name"`  // name of the sandbox
	Layer string `json:"layer"` // as in Packing
}

// SendRequest asks for the references to push for a proposal.
type SendRequest struct {
	Name     string `json:"name"`                // name of the sandbox
	Remote   string `json:"remote"`              // a remote of its repository
	Layers   bool   `json:"layers,omitempty"`    // include the layers of its snapshots, packed
	MaxBytes int64  `json:"max_bytes,omitempty"` // limit for the packed layers, in bytes; 0 is 64 MiB
	// with layers: where the layers were pushed to, so that they are not packed again
	Artifact *Artifact `json:"artifact,omitempty"`
}

// Sending lists what to push.
type Sending struct {
	Top     string    `json:"top"`               // the work tree to push from
	Refs    []SendRef `json:"refs"`              // references to push, each to the same name
	Bytes   int64     `json:"bytes,omitempty"`   // size of the packed layers
	Foreign bool      `json:"foreign,omitempty"` // the remote has a proposal of this name from another host
}

// SendRef is a reference to push to the same name.
type SendRef struct {
	Ref  string `json:"ref"`            // full name
	To   string `json:"to"`             // the object to push
	Seen string `json:"seen,omitempty"` // last known object of the remote; "" if none
}

// SentRequest records a push.
type SentRequest struct {
	Travelled
	Refs []SendRef `json:"refs"` // the pushed references
}

// ReceiveRequest asks to check a proposal that the user's git has fetched to the references of StagingRef, and to
// store it.
type ReceiveRequest struct {
	Travelled
	// the verifier key of the log to trust from now on, if the log of that name was signed with another key before
	Key    string `json:"key,omitempty"`
	Layers bool   `json:"layers,omitempty"` // create a sandbox from the fetched layers
	As     string `json:"as,omitempty"`     // name of that sandbox; "" is the name of the proposal
}

// Received is a pulled proposal, as checked here.
type Received struct {
	Travelled
	Proposal  string    `json:"proposal"`             // the commit of the proposal
	Sandbox   string    `json:"sandbox"`              // ID of the proposer's sandbox
	Title     string    `json:"title,omitempty"`      // purpose, as claimed by the proposer
	Time      time.Time `json:"time"`                 // time of the proposal, as claimed
	Base      string    `json:"base"`                 // the commit that it is based on
	Start     string    `json:"start"`                // the commit that the sandbox started from: base, or a commit on it
	Work      string    `json:"work"`                 // the proposed commit
	From      string    `json:"from,omitempty"`       // the branch whose tip base was, as claimed by the proposer
	Commits   int       `json:"commits"`              // number of commits that work has and start does not
	Files     int       `json:"files"`                // number of changed files
	Added     int       `json:"added"`                // added lines
	Deleted   int       `json:"deleted"`              // deleted lines
	Marks     []GitMark `json:"marks"`                // files that the host would run or trust, computed here
	Signer    Signer    `json:"signer"`               // signer of the log with its records
	Records   int64     `json:"records"`              // number of its ledger records, all verified
	Bound     bool      `json:"bound"`                // the log records exactly this commit as proposed
	Differs   []string  `json:"differs,omitempty"`    // claims that differ from what was found here
	Summary   string    `json:"summary"`              // beginning of the report
	Report    string    `json:"report"`               // report in Markdown, generated here
	HasLayers bool      `json:"has_layers,omitempty"` // layers were included
	// where the requested layers are, if not in the repository: the sandbox is not created yet
	Artifact *Artifact `json:"artifact,omitempty"`
	Made     *Sandbox  `json:"made,omitempty"`     // the sandbox that was created from the layers
	Warnings []string  `json:"warnings,omitempty"` // further warnings
}

// Signer is the signer of the log of a proposal.
type Signer struct {
	Origin  string    `json:"origin"`            // name of the log
	Key     string    `json:"key"`               // the verifier key of the signature
	Since   time.Time `json:"since,omitzero"`    // first use of the key here; absent for this host's own log
	First   bool      `json:"first,omitempty"`   // the key was not known before
	Changed string    `json:"changed,omitempty"` // the key that was trusted before
}

// ReceivedList lists the proposals that were pulled into a repository.
type ReceivedList struct {
	Proposals []ReceivedItem `json:"proposals"` // by remote and name
}

// ReceivedItem is one pulled proposal.
type ReceivedItem struct {
	Remote   string `json:"remote"`   // the name of the remote
	Name     string `json:"name"`     // name of the proposed sandbox
	Proposal string `json:"proposal"` // the commit of the proposal
	Work     string `json:"work"`     // the proposed commit
}

// TravelRef returns the reference under which a part of a proposal is pushed; kind is "heads", "proposals" or
// "layers".
func TravelRef(kind, name string) string {
	if kind == "heads" {
		return "refs/heads/coppice/" + name
	}
	return "refs/coppice/" + kind + "/" + name
}

// StagingRef returns the reference to which the user's git fetches a part of a proposal that has not been checked
// yet.
func StagingRef(remote, name, kind string) string {
	return "refs/coppice/staging/" + remote + "/" + name + "/" + kind
}

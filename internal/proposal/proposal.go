// Package proposal encodes and strictly decodes proposals of a sandbox's changes, and writes the report for their
// reviewer. It does no I/O. docs/git.md describes how git stores a proposal.
//
// A proposal comes from another user, and most of its content from a sandbox: all of it is hostile. So Decode accepts
// only the output of Encode, and a report shows foreign text only in code spans (see code).
package proposal

import "time"

// Schema is the version of the output of Encode.
const Schema = 1

// The files of a proposal's tree.
const (
	FileProposal = "proposal.json" // Proposal, as written by Encode
	FileReport   = "report.md"     // report for the reviewer
	FilePatch    = "change.patch"  // patch for git from Start to Work
	FilePolicy   = "policy.yaml"   // the policy whose digest is Proposal.Policy
	FileLedger   = "ledger.bundle" // the records of the sandbox with their proofs, as written by `ledger export`
)

// Names lists the files of a proposal's tree, in the order of a tree.
func Names() []string {
	return []string{FilePatch, FileLedger, FilePolicy, FileProposal, FileReport}
}

// Limit returns the maximum size of a file of a proposal in bytes; 0 for other files.
func Limit(name string) int64 {
	switch name {
	case FileProposal:
		return 64 << 20
	case FileReport:
		return 16 << 20
	case FilePolicy:
		return 4 << 20
	case FilePatch:
		return 256 << 20
	case FileLedger:
		return 1 << 30
	}
	return 0
}

// Maximum numbers of listed items. Further ones are only counted.
const (
	MaxChanges   = 10_000
	MaxMarks     = 10_000
	MaxSkipped   = 1000
	MaxCommands  = 1000
	MaxRefused   = 1000
	MaxSnapshots = 10_000
	MaxTests     = 64
	MaxEnforced  = 1000
	maxText      = 64 << 10 // maximum size of one text in bytes
)

// Proposal is the changes of a sandbox, for review. Paths are in the form of Path.
type Proposal struct {
	Schema  int       `json:"schema"`
	Name    string    `json:"name"`            // of the sandbox
	Title   string    `json:"title,omitempty"` // its purpose, in one line
	Sandbox string    `json:"sandbox"`         // the ID of the sandbox
	Created time.Time `json:"created"`         // creation time of the sandbox
	Time    time.Time `json:"time"`            // time of the proposal

	Base string `json:"base"` // the frozen commit of the repository
	// the commit that the sandbox started from: Base, or a commit on it with uncommitted changes
	Start   string `json:"start"`
	Tip     string `json:"tip"`            // its HEAD
	Work    string `json:"work"`           // Tip, or a commit on it with uncommitted changes
	Branch  string `json:"branch"`         // short name of the branch that is set to Work
	From    string `json:"from,omitempty"` // short name of the branch with the tip Base
	Commits int    `json:"commits"`        // number of commits that Work has and Start does not

	Tier     string   `json:"tier"`               // tier of isolation
	Policy   string   `json:"policy"`             // digest of the policy
	Enforced []string `json:"enforced,omitempty"` // protections that the host enforced at the last start of the sandbox
	Lacking  []string `json:"lacking,omitempty"`  // protections that the host could not enforce

	Stat    Stat      `json:"stat"`
	Changes []Change  `json:"changes,omitempty"` // from Start to Work, at most MaxChanges
	Marks   []Mark    `json:"marks,omitempty"`   // at most MaxMarks
	Skipped []Skipped `json:"skipped,omitempty"` // at most MaxSkipped
	Tests   []Test    `json:"tests,omitempty"`   // requested with the proposal

	Ledger   Ledger    `json:"ledger"`
	Commands []Command `json:"commands,omitempty"` // the newest MaxCommands, oldest first
	Refused  []Refused `json:"refused,omitempty"`  // at most MaxRefused

	Snapshot  string     `json:"snapshot"`            // the proposed snapshot
	Snapshots []Snapshot `json:"snapshots,omitempty"` // the newest MaxSnapshots of the history, oldest first
}

// Stat counts changes.
type Stat struct {
	Files     int `json:"files"`
	Added     int `json:"added"`   // lines
	Deleted   int `json:"deleted"` // lines
	Marks     int `json:"marks"`
	Skipped   int `json:"skipped"`
	Snapshots int `json:"snapshots"`
}

// Change is a path that differs.
type Change struct {
	Status  string `json:"status"` // A added, D deleted, M modified, T type changed, R renamed, C copied
	Path    string `json:"path"`
	OldPath string `json:"old_path,omitempty"` // previous path of a rename or copy
	Binary  bool   `json:"binary,omitempty"`
	Added   int    `json:"added"`   // lines
	Deleted int    `json:"deleted"` // lines
}

// Mark marks a changed path that a host would later run or trust.
type Mark struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
	Why  string `json:"why"`
}

// Skipped is a part of the work tree that is not in a commit.
type Skipped struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Test is a command that was run in a fork of the sandbox.
type Test struct {
	Cmd      string `json:"cmd"`
	Code     int    `json:"code"`
	MS       int64  `json:"ms"` // duration in milliseconds
	TimedOut bool   `json:"timed_out,omitempty"`
	Output   string `json:"output,omitempty"` // the end of the output
}

// Ledger summarizes the records of the sandbox.
type Ledger struct {
	Records     int64  `json:"records"`
	Commands    int64  `json:"commands"`
	Failed      int64  `json:"failed"`   // failed commands
	Programs    int64  `json:"programs"` // started programs
	NetAllowed  int64  `json:"net_allowed"`
	NetRefused  int64  `json:"net_refused"`
	FileRefused int64  `json:"file_refused"` // files and system calls
	BytesOut    int64  `json:"bytes_out"`
	Lost        bool   `json:"lost,omitempty"` // some records could not be stored
	Risk        int    `json:"risk"`           // 0 to 100; see docs/LEDGER.md
	Origin      string `json:"origin"`         // name of the log
	Key         string `json:"key"`            // the verifier key that the proposer's log claims
}

// Command is a command that was run in the sandbox.
type Command struct {
	Record   int64    `json:"record"` // number of the record of its start
	Args     []string `json:"args"`   // redacted
	Dir      string   `json:"dir,omitempty"`
	Ended    bool     `json:"ended"`
	Code     int      `json:"code"`
	Reason   string   `json:"reason,omitempty"` // why it was killed, or by which signal
	MS       int64    `json:"ms"`               // duration in milliseconds
	Programs int64    `json:"programs"`         // programs that it started
}

// Refused is something that the sandbox was denied.
type Refused struct {
	Kind  string `json:"kind"` // network, file, syscall or limit
	What  string `json:"what"`
	Why   string `json:"why,omitempty"`
	Count int64  `json:"count"`
}

// Snapshot is a snapshot of the sandbox's history.
type Snapshot struct {
	ID      string    `json:"id"`
	Parent  string    `json:"parent,omitempty"`
	Cause   string    `json:"cause"`
	Message string    `json:"message,omitempty"`
	Time    time.Time `json:"time"`
	Layers  []string  `json:"layers,omitempty"` // digests of the finalized layers against its parent
}

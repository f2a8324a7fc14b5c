package wire

import "time"

// LedgerHost is the name of the records that belong to no sandbox.
const LedgerHost = "host"

// LedgerRecord is one record of the ledger: see docs/LEDGER.md.
type LedgerRecord struct {
	Seq      int64          `json:"seq"`              // its place among the records of the sandbox, from 1
	Leaf     int64          `json:"leaf"`             // its place in the log of the host, from 0
	Time     time.Time      `json:"time"`             // when it was written
	Kind     string         `json:"kind"`             // such as "exec"
	Observer string         `json:"observer"`         // whose word it is: kernel, keeper, gate, daemon, or sandbox, the inside's own
	Sandbox  string         `json:"sandbox"`          // id, or "host"
	Name     string         `json:"name"`             // what the sandbox was called
	Policy   string         `json:"policy,omitempty"` // digest of the policy in force
	Tier     string         `json:"tier,omitempty"`   // tier in force
	Prev     string         `json:"prev"`             // hash of the record before
	Body     map[string]any `json:"body"`             // what it tells, by kind
	Text     string         `json:"text"`             // the same in a line, for people
}

// LedgerRequest says which records are wanted, oldest first.
type LedgerRequest struct {
	From  int64     `json:"from,omitempty"`  // none before this one
	Since time.Time `json:"since,omitzero"`  // none that is older
	Kinds []string  `json:"kinds,omitempty"` // of these alone; none is all
	Last  int       `json:"last,omitempty"`  // the newest so many; 0 is no such bound
	Limit int       `json:"limit,omitempty"` // so many at most, from the first on; 0 is 1000, which is the most
}

// LedgerResult is the answer to a LedgerRequest.
type LedgerResult struct {
	Records []LedgerRecord `json:"records"`        // oldest first
	More    bool           `json:"more,omitempty"` // there are more behind the last one
}

// LedgerInspection is a record with those that belong to it.
type LedgerInspection struct {
	Record LedgerRecord   `json:"record"`           // the one that was asked for
	With   []LedgerRecord `json:"with"`             // those of the same command; and who tells that it is undone
	Undone bool           `json:"undone,omitempty"` // what it tells did not come about
	// of a command: decisions about the network, and denials, recorded while it ran, 1000 at
	// most; of the whole sandbox, whichever of its commands they are about
	Between []LedgerRecord `json:"between,omitempty"`
	More    bool           `json:"more,omitempty"`   // there are more of these
	Output  []LedgerOutput `json:"output,omitempty"` // of a command: what was kept of its output
}

// LedgerOutput is what was kept of a stream of a command's output, redacted.
type LedgerOutput struct {
	Stream  string `json:"stream"`            // stdout, stderr or terminal
	Blob    string `json:"blob,omitempty"`    // name of the capture
	Dropped int64  `json:"dropped,omitempty"` // bytes that were not kept
	Data    []byte `json:"data,omitempty"`    // what was kept, in base64
	Lost    string `json:"lost,omitempty"`    // why what was kept cannot be read
}

// LedgerVerify asks whether the records of a sandbox are those that were appended.
type LedgerVerify struct {
	Keys       []string `json:"keys,omitempty"`       // verifier keys that are trusted; none trusts those that the log names
	Checkpoint string   `json:"checkpoint,omitempty"` // an older one, from which the log must have grown
}

// LedgerVerified is the answer to a LedgerVerify where all records fit.
type LedgerVerified struct {
	Records int64  `json:"records"`         // of the sandbox
	Origin  string `json:"origin"`          // name of the log
	Size    int64  `json:"size"`            // records of the log
	Root    string `json:"root"`            // of its tree, in hex
	Grown   bool   `json:"grown,omitempty"` // from the checkpoint that was given
}

// LedgerCheckpoint is the log as it is now.
type LedgerCheckpoint struct {
	Checkpoint string `json:"checkpoint"` // signed note
	Key        string `json:"key"`        // the verifier key that it is signed with
}

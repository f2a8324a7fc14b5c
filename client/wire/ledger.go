package wire

import "time"

// LedgerHost is the name of the records that belong to no sandbox.
const LedgerHost = "host"

// LedgerRecord is one record of the ledger: see docs/LEDGER.md.
type LedgerRecord struct {
	Seq  int64     `json:"seq"`  // its place among the records of the sandbox, from 1
	Leaf int64     `json:"leaf"` // its place in the log of the host, from 0
	Time time.Time `json:"time"` // when it was written
	Kind string    `json:"kind"` // such as "exec"
	// the source: kernel, keeper, gate, daemon, or the sandbox itself
	Observer string         `json:"observer"`
	Sandbox  string         `json:"sandbox"`          // id, or "host"
	Name     string         `json:"name"`             // what the sandbox was called
	Policy   string         `json:"policy,omitempty"` // digest of the policy in force
	Tier     string         `json:"tier,omitempty"`   // tier in force
	Prev     string         `json:"prev"`             // hash of the record before
	Body     map[string]any `json:"body"`             // content, by kind
	Text     string         `json:"text"`             // the same as one line of text
}

// LedgerRequest selects records, oldest first.
type LedgerRequest struct {
	From  int64     `json:"from,omitempty"`  // the first record to return
	Since time.Time `json:"since,omitzero"`  // only records since then
	Kinds []string  `json:"kinds,omitempty"` // only these kinds; none is all
	Last  int       `json:"last,omitempty"`  // the newest N; 0 is no limit
	Limit int       `json:"limit,omitempty"` // maximum number; 0 is 1000, the maximum
}

// LedgerResult is the answer to a LedgerRequest.
type LedgerResult struct {
	Records []LedgerRecord `json:"records"`        // oldest first
	More    bool           `json:"more,omitempty"` // there are more after the last one
}

// LedgerInspection is a record with those that belong to it.
type LedgerInspection struct {
	Record LedgerRecord   `json:"record"`           // the one that was asked for
	With   []LedgerRecord `json:"with"`             // those of the same command; and who tells that it is undone
	Undone bool           `json:"undone,omitempty"` // the operation was undone or did not happen
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
	Dropped int64  `json:"dropped,omitempty"` // bytes not captured
	Data    []byte `json:"data,omitempty"`    // the captured output, in base64
	Lost    string `json:"lost,omitempty"`    // why the captured output cannot be read
}

// LedgerPrograms are programs that a record of kind program stands for.
type LedgerPrograms struct {
	Programs []map[string]any `json:"programs"` // by their beginning, as bodies of such records; 1000 at most
	Total    int64            `json:"total"`    // how many it stands for
}

// LedgerVerify asks whether the records of a sandbox are those that were appended.
type LedgerVerify struct {
	// verifier keys that are trusted; none trusts those that the log names
	Keys       []string `json:"keys,omitempty"`
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
	// where an older size was given: what a witness is asked with, as add-checkpoint of C2SP tlog-witness has it
	Growth string `json:"growth,omitempty"`
}

// LedgerGrowth asks a witness, or keeps what it gave.
type LedgerGrowth struct {
	// of ledger/cosign: the text of LedgerCheckpoint.Growth; of ledger/witness: the note with the cosignatures
	Checkpoint string `json:"checkpoint"`
	// of ledger/cosign: verifier keys of the log; of ledger/witness: of the witnesses
	Keys []string `json:"keys"`
}

// LedgerCosigned is the checkpoint of another host's log that this one cosigned.
type LedgerCosigned struct {
	Checkpoint string `json:"checkpoint"`       // signed note, with the cosignature
	Signature  string `json:"signature"`        // the line of the cosignature alone
	Key        string `json:"key"`              // verifier key of this host as a witness
	Origin     string `json:"origin"`           // name of the log
	Size       int64  `json:"size"`             // records of the log
	Before     int64  `json:"before,omitempty"` // how many it had when it was cosigned before; 0 for never
}

// LedgerWitnessed is the checkpoint of this log that is kept as the newest with cosignatures.
type LedgerWitnessed struct {
	Origin string `json:"origin"` // name of the log
	Size   int64  `json:"size"`   // records that it had
}

// LedgerKey is a verifier key of the log.
type LedgerKey struct {
	Key     string `json:"key"`               // NAME+HASH+KEY
	From    int64  `json:"from"`              // it signs from this size of the log on
	Current bool   `json:"current,omitempty"` // it signs now
}

// LedgerKeys are the verifier keys of a host.
type LedgerKeys struct {
	Keys    []LedgerKey `json:"keys"`              // of its log, the first one first; each is signed by the one before
	Witness string      `json:"witness,omitempty"` // by which it cosigns the logs of others; absent before it did so
}

// LedgerArchive says which records of a sandbox are compressed.
type LedgerArchive struct {
	Before time.Time `json:"before"` // those that are older, as far as whole segments go
}

// LedgerArchived is the answer to a LedgerArchive.
type LedgerArchived struct {
	Records int64 `json:"records"` // how many were compressed
}

// LedgerSummary summarizes the records of a sandbox.
type LedgerSummary struct {
	Sandbox        string       `json:"sandbox"`                   // its id
	Name           string       `json:"name"`                      // name of the sandbox
	Removed        bool         `json:"removed,omitempty"`         // it was removed
	Records        int64        `json:"records"`                   // how many
	First          time.Time    `json:"first,omitzero"`            // time of the first record
	Last           time.Time    `json:"last,omitzero"`             // of the last one
	Commands       int64        `json:"commands"`                  // that began
	Ended          int64        `json:"ended"`                     // commands exited
	Failed         int64        `json:"failed"`                    // commands that failed
	Code           *int         `json:"code,omitempty"`            // exit code of the last one; absent if none exited
	Outcome        string       `json:"outcome,omitempty"`         // of the same, in words
	DurationNS     int64        `json:"duration_ns"`               // all commands together
	Snapshots      int64        `json:"snapshots"`                 // snapshots taken
	Rollbacks      int64        `json:"rollbacks"`                 // number of rewinds
	Changes        int64        `json:"changes"`                   // paths that differ, over all snapshots
	PathNames      []string     `json:"path_names,omitempty"`      // some of them, where they are recorded
	Denied         int64        `json:"denied"`                    // refused files and system calls
	NetAllowed     int64        `json:"net_allowed"`               // connections allowed
	NetDenied      int64        `json:"net_denied"`                // connections denied
	Hosts          int64        `json:"hosts"`                     // hosts reached
	HostNames      []string     `json:"host_names,omitempty"`      // some of them
	BytesIn        int64        `json:"bytes_in"`                  // from them
	BytesOut       int64        `json:"bytes_out"`                 // to them
	Limits         int64        `json:"limits"`                    // that were hit
	Programs       int64        `json:"programs"`                  // that were started
	ProgramsFailed int64        `json:"programs_failed,omitempty"` // programs that failed
	Lost           bool         `json:"lost,omitempty"`            // some records were lost
	Risk           int          `json:"risk"`                      // 0 to 100; see docs/LEDGER.md
	Risks          []LedgerRisk `json:"risks,omitempty"`           // the parts of the score
}

// LedgerRisk is a part of a score.
type LedgerRisk struct {
	What   string `json:"what"`   // such as "refused"
	Count  int64  `json:"count"`  // how much of it
	Points int    `json:"points"` // which is worth so many
}

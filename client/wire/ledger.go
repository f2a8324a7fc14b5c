package wire

import "time"

// LedgerHost is the sandbox name of records that belong to no sandbox.
const LedgerHost = "host"

// LedgerRecord is one record of the audit log: see docs/LEDGER.md.
type LedgerRecord struct {
	Seq  int64     `json:"seq"`  // position among the records of the sandbox, from 1
	Leaf int64     `json:"leaf"` // position in the log of the host, from 0
	Time time.Time `json:"time"` // when it was written
	Kind string    `json:"kind"` // such as "exec"
	// the source: kernel, keeper, gate, daemon, or the sandbox itself
	Observer string         `json:"observer"`
	Sandbox  string         `json:"sandbox"`          // ID of the sandbox, or "host"
	Name     string         `json:"name"`             // name of the sandbox at that time
	Policy   string         `json:"policy,omitempty"` // digest of the policy in force
	Tier     string         `json:"tier,omitempty"`   // tier in force
	Prev     string         `json:"prev"`             // hash of the previous record of the sandbox
	Body     map[string]any `json:"body"`             // content, by kind
	Text     string         `json:"text"`             // the body as one line of text
}

// LedgerRequest selects records, oldest first.
type LedgerRequest struct {
	From  int64     `json:"from,omitempty"`  // the seq of the first record to return
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

// LedgerInspection is a record with its related records.
type LedgerInspection struct {
	Record LedgerRecord `json:"record"` // the requested record
	// other records of the same command, and the record that reports that it was undone
	With   []LedgerRecord `json:"with"`
	Undone bool           `json:"undone,omitempty"` // the operation was undone or did not happen
	// of a command: network decisions and denials that were recorded while it ran, at most 1000; of all commands of
	// the sandbox
	Between []LedgerRecord `json:"between,omitempty"`
	More    bool           `json:"more,omitempty"`   // there are more records in between
	Output  []LedgerOutput `json:"output,omitempty"` // of a command: its captured output
}

// LedgerOutput is the captured output of one stream of a command, redacted.
type LedgerOutput struct {
	Stream  string `json:"stream"`            // stdout, stderr or terminal
	Blob    string `json:"blob,omitempty"`    // name of the capture
	Dropped int64  `json:"dropped,omitempty"` // bytes not captured
	Data    []byte `json:"data,omitempty"`    // the captured output, in base64
	Lost    string `json:"lost,omitempty"`    // why the captured output cannot be read
}

// LedgerPrograms lists the programs that a record of kind program stands for.
type LedgerPrograms struct {
	Programs []map[string]any `json:"programs"` // by start, as bodies of such records; at most 1000
	Total    int64            `json:"total"`    // number of programs of the record
}

// LedgerVerify asks to verify the records of a sandbox.
type LedgerVerify struct {
	// trusted verifier keys; none trusts those that the log names
	Keys       []string `json:"keys,omitempty"`
	Checkpoint string   `json:"checkpoint,omitempty"` // an older checkpoint that the log must be consistent with
}

// LedgerVerified is the answer to a LedgerVerify if all records verify.
type LedgerVerified struct {
	Records int64  `json:"records"`         // number of records of the sandbox
	Origin  string `json:"origin"`          // name of the log
	Size    int64  `json:"size"`            // number of records of the log
	Root    string `json:"root"`            // root hash of the log's tree, in hex
	Grown   bool   `json:"grown,omitempty"` // the log is consistent with the given checkpoint
}

// LedgerCheckpoint is the current checkpoint of the log.
type LedgerCheckpoint struct {
	Checkpoint string `json:"checkpoint"` // signed note
	Key        string `json:"key"`        // the verifier key of its signature
	// if an older size was given: the body of a request to a witness, as add-checkpoint of C2SP tlog-witness defines
	// it
	Growth string `json:"growth,omitempty"`
}

// LedgerGrowth asks for a cosignature, or stores one.
type LedgerGrowth struct {
	// with ledger/cosign: LedgerCheckpoint.Growth; with ledger/witness: the note with the cosignatures
	Checkpoint string `json:"checkpoint"`
	// verifier keys: with ledger/cosign of the log, with ledger/witness of the witnesses
	Keys []string `json:"keys"`
}

// LedgerCosigned is the checkpoint of another host's log with the cosignature of this host.
type LedgerCosigned struct {
	Checkpoint string `json:"checkpoint"`       // signed note, with the cosignature
	Signature  string `json:"signature"`        // the line of the cosignature
	Key        string `json:"key"`              // verifier key of this host as a witness
	Origin     string `json:"origin"`           // name of the log
	Size       int64  `json:"size"`             // number of records of the log
	Before     int64  `json:"before,omitempty"` // the size that was cosigned before; 0 if none
}

// LedgerWitnessed is the newest stored checkpoint of this log with cosignatures.
type LedgerWitnessed struct {
	Origin string `json:"origin"` // name of the log
	Size   int64  `json:"size"`   // number of records of the log at that time
}

// LedgerKey is a verifier key of the log.
type LedgerKey struct {
	Key     string `json:"key"`               // NAME+HASH+KEY
	From    int64  `json:"from"`              // the size of the log from which on it signs
	Current bool   `json:"current,omitempty"` // it is the current signing key
}

// LedgerKeys are the verifier keys of a host.
type LedgerKeys struct {
	Keys []LedgerKey `json:"keys"` // keys of its log, oldest first; each is signed by the one before
	// the key with which it cosigns the logs of others; absent before its first cosignature
	Witness string `json:"witness,omitempty"`
}

// LedgerArchive asks to compress records of a sandbox.
type LedgerArchive struct {
	Before time.Time `json:"before"` // records older than this, in whole segments
}

// LedgerArchived is the answer to a LedgerArchive.
type LedgerArchived struct {
	Records int64 `json:"records"` // number of compressed records
}

// LedgerSummary summarizes the records of a sandbox.
type LedgerSummary struct {
	Sandbox        string       `json:"sandbox"`                   // ID of the sandbox
	Name           string       `json:"name"`                      // name of the sandbox
	Removed        bool         `json:"removed,omitempty"`         // the sandbox was removed
	Records        int64        `json:"records"`                   // number of records
	First          time.Time    `json:"first,omitzero"`            // time of the first record
	Last           time.Time    `json:"last,omitzero"`             // time of the last record
	Commands       int64        `json:"commands"`                  // commands started
	Ended          int64        `json:"ended"`                     // commands exited
	Failed         int64        `json:"failed"`                    // commands that failed
	Code           *int         `json:"code,omitempty"`            // exit code of the last one; absent if none exited
	Outcome        string       `json:"outcome,omitempty"`         // outcome of the last one, in words
	DurationNS     int64        `json:"duration_ns"`               // total run time of all commands
	Snapshots      int64        `json:"snapshots"`                 // snapshots taken
	Rollbacks      int64        `json:"rollbacks"`                 // number of rewinds
	Changes        int64        `json:"changes"`                   // changed paths, over all snapshots
	PathNames      []string     `json:"path_names,omitempty"`      // some of the changed paths, if recorded
	Denied         int64        `json:"denied"`                    // refused files and system calls
	FilesDenied    int64        `json:"files_denied,omitempty"`    // those of them that are files, without honeytokens
	NetAllowed     int64        `json:"net_allowed"`               // connections allowed
	NetDenied      int64        `json:"net_denied"`                // connections denied
	Hosts          int64        `json:"hosts"`                     // hosts reached
	HostNames      []string     `json:"host_names,omitempty"`      // some of the hosts
	BytesIn        int64        `json:"bytes_in"`                  // bytes received from them
	BytesOut       int64        `json:"bytes_out"`                 // bytes sent to them
	Limits         int64        `json:"limits"`                    // limits reached
	Programs       int64        `json:"programs"`                  // programs started
	ProgramsFailed int64        `json:"programs_failed,omitempty"` // programs that failed
	Lost           bool         `json:"lost,omitempty"`            // some records were lost
	Risk           int          `json:"risk"`                      // risk score, 0 to 100; see docs/LEDGER.md
	Risks          []LedgerRisk `json:"risks,omitempty"`           // the parts of the score
}

// LedgerRisk is a part of the risk score.
type LedgerRisk struct {
	What   string `json:"what"`   // such as "refused"
	Count  int64  `json:"count"`  // number of occurrences
	Points int    `json:"points"` // points for them
}

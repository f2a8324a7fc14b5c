package format

// Kind is the kind of a record.
type Kind string

// The kinds. A kind is never removed.
const (
	KindApply      Kind = "apply"
	KindApproval   Kind = "approval"
	KindArchive    Kind = "archive"
	KindCreate     Kind = "create"
	KindDelete     Kind = "delete"
	KindDenial     Kind = "denial"
	KindDrop       Kind = "drop"
	KindExec       Kind = "exec"
	KindExit       Kind = "exit"
	KindFork       Kind = "fork"
	KindGrant      Kind = "grant"
	KindKey        Kind = "key"
	KindLimit      Kind = "limit"
	KindLost       Kind = "lost"
	KindNetwork    Kind = "network"
	KindPause      Kind = "pause"
	KindPolicy     Kind = "policy"
	KindProgram    Kind = "program"
	KindPropose    Kind = "propose"
	KindRebase     Kind = "rebase"
	KindRekey      Kind = "reseal"
	KindRollback   Kind = "rollback"
	KindSession    Kind = "session"
	KindSnapshot   Kind = "snapshot"
	KindStart      Kind = "start"
	KindStop       Kind = "stop"
	KindTournament Kind = "tournament"
	KindUndone     Kind = "undone"
)

// Kinds lists all kinds, in order.
func Kinds() []Kind {
	return []Kind{KindApply, KindApproval, KindArchive, KindCreate, KindDelete, KindDenial, KindDrop, KindExec, KindExit,
		KindFork, KindGrant, KindKey,
		KindLimit, KindLost, KindNetwork, KindPause, KindPolicy, KindProgram, KindPropose, KindRebase, KindRekey,
		KindRollback, KindSession, KindSnapshot, KindStart, KindStop, KindTournament, KindUndone}
}

// Body is the content of a record. Each kind has its own type, a pointer to a struct of this package. Fields
// are in the order of their JSON names; numbers are below 2^53.
type Body interface{ Kind() Kind }

// newBody returns an empty body of a kind; nil for an unknown one.
func newBody(k Kind) Body {
	switch k {
	case KindApply:
		return new(Apply)
	case KindApproval:
		return new(Approval)
	case KindArchive:
		return new(Archive)
	case KindCreate:
		return new(Create)
	case KindDelete:
		return new(Delete)
	case KindDenial:
		return new(Denial)
	case KindDrop:
		return new(Drop)
	case KindExec:
		return new(Exec)
	case KindExit:
		return new(Exit)
	case KindFork:
		return new(Fork)
	case KindGrant:
		return new(Grant)
	case KindKey:
		return new(Key)
	case KindLimit:
		return new(Limit)
	case KindLost:
		return new(Lost)
	case KindNetwork:
		return new(Network)
	case KindPause:
		return new(Pause)
	case KindPolicy:
		return new(Policy)
	case KindProgram:
		return new(Program)
	case KindPropose:
		return new(Propose)
	case KindRebase:
		return new(Rebase)
	case KindRekey:
		return new(Rekey)
	case KindRollback:
		return new(Rollback)
	case KindSession:
		return new(Session)
	case KindSnapshot:
		return new(Snapshot)
	case KindStart:
		return new(Start)
	case KindStop:
		return new(Stop)
	case KindTournament:
		return new(Tournament)
	case KindUndone:
		return new(Undone)
	}
	return nil
}

// Apply records that the changes of a sandbox were applied to a branch of its repository, on the host.
type Apply struct {
	Changes int64    `json:"changes" jsonschema:"How many paths changed"`
	Marks   []string `json:"marks,omitempty" jsonschema:"Those of them that the host would later run or trust, and that a person had reviewed"`
	New     string   `json:"new,omitempty" jsonschema:"Commit that the branch is now; absent where only files changed"`
	Old     string   `json:"old" jsonschema:"Commit that it was"`
	Onto    string   `json:"onto,omitempty" jsonschema:"The branch, in full; absent where only files changed"`
	Repo    string   `json:"repo" jsonschema:"Top of the work tree, on the host"`
	Way     string   `json:"way" jsonschema:"How: squash, merge, rebase or patch"`
	Work    string   `json:"work" jsonschema:"Commit of the sandbox's files that was applied"`
}

// Approval records that a person answered a pending request.
type Approval struct {
	Answer   string `json:"answer" jsonschema:"What was answered: allow or deny"`
	By       string `json:"by" jsonschema:"Who answered, as the daemon knows them"`
	Question string `json:"question" jsonschema:"What was asked for"`
	Until    string `json:"until,omitempty" jsonschema:"Until when the answer holds; absent for good"`
}

// Archive records that older segments of the sandbox were compressed. They still verify.
type Archive struct {
	First int64 `json:"first" jsonschema:"Seq of the first record archived"`
	Last  int64 `json:"last" jsonschema:"Seq of the last record archived"`
}

// Create records that the sandbox was created.
type Create struct {
	Base       string   `json:"base" jsonschema:"What its root file system is made from"`
	Commit     string   `json:"commit,omitempty" jsonschema:"The commit of the repository that it begins at"`
	Driver     string   `json:"driver,omitempty" jsonschema:"How its root file system is versioned"`
	From       string   `json:"from,omitempty" jsonschema:"Id of the sandbox it is a fork of"`
	Labels     []string `json:"labels,omitempty" jsonschema:"Its labels, as KEY=VALUE, redacted; later changes of them are not recorded"`
	Repository string   `json:"repository,omitempty" jsonschema:"The work tree on the host of the git repository that it works on"`
	Snapshot   string   `json:"snapshot,omitempty" jsonschema:"Snapshot it begins at"`
	Start      string   `json:"start,omitempty" jsonschema:"The commit, on the one that it begins at, of what was not committed and is in it"`
}

// Delete records that the sandbox was removed or, among the records of host, that its ledger was removed.
type Delete struct {
	Head    string `json:"head,omitempty" jsonschema:"Hash of its last record, where the ledger goes as well"`
	Ledger  bool   `json:"ledger" jsonschema:"Whether its ledger goes as well"`
	Records int64  `json:"records,omitempty" jsonschema:"How many records it had, where the ledger goes as well"`
	Sandbox string `json:"sandbox" jsonschema:"Id of what is deleted"`
}

// Denial records that a file or a system call was refused, perhaps several times.
type Denial struct {
	Count   int64  `json:"count" jsonschema:"How often"`
	Exec    string `json:"exec,omitempty" jsonschema:"Id of the command"`
	Path    string `json:"path,omitempty" jsonschema:"The file"`
	PID     int64  `json:"pid,omitempty" jsonschema:"Process, as the inside numbers it"`
	Program string `json:"program,omitempty" jsonschema:"What the process ran, as the inside names it"`
	Reason  string `json:"reason" jsonschema:"Why it was refused"`
	Syscall string `json:"syscall,omitempty" jsonschema:"The system call"`
}

// Drop records that snapshots were removed. Snapshots on top of them did not change.
type Drop struct {
	Reason    string   `json:"reason" jsonschema:"Why: asked, retention, unreferenced or lost"`
	Snapshots []string `json:"snapshots,omitempty" jsonschema:"Their ids"`
}

// Exec records the start of a command.
type Exec struct {
	Args []string `json:"args,omitempty" jsonschema:"The command, redacted"`
	Dir  string   `json:"dir,omitempty" jsonschema:"Working directory, redacted"`
	Env  []string `json:"env,omitempty" jsonschema:"Names of its environment variables; never their values"`
	Exec string   `json:"exec" jsonschema:"Id of the command"`
	TTY  bool     `json:"tty,omitempty" jsonschema:"Whether it has a terminal"`
	User string   `json:"user,omitempty" jsonschema:"The user that it runs as inside"`
}

// Exit records the exit of a command.
type Exit struct {
	Before        string    `json:"before,omitempty" jsonschema:"Snapshot before the command"`
	Changes       []Change  `json:"changes,omitempty" jsonschema:"Paths that it changed, 256 at most"`
	ChangesTotal  int64     `json:"changes_total,omitempty" jsonschema:"How many paths it changed"`
	Code          int       `json:"code" jsonschema:"Exit code; 255 with a reason where it is not known"`
	Denials       int64     `json:"denials,omitempty" jsonschema:"How many denials were recorded of the sandbox while it ran"`
	DurationNanos int64     `json:"duration_ns" jsonschema:"How long it ran, in nanoseconds"`
	Exec          string    `json:"exec" jsonschema:"Id of the command"`
	Output        []Output  `json:"output,omitempty" jsonschema:"What it wrote"`
	Reason        string    `json:"reason,omitempty" jsonschema:"Why it was ended, where it was"`
	Resources     Resources `json:"resources" jsonschema:"What it used, and those of its descendants that it waited for"`
	Signal        string    `json:"signal,omitempty" jsonschema:"The signal that ended it"`
	Snapshot      string    `json:"snapshot,omitempty" jsonschema:"Snapshot after the command"`
}

// Change is a path that a command changed.
type Change struct {
	Change string `json:"change" jsonschema:"added, changed or removed"`
	Path   string `json:"path" jsonschema:"The path inside, redacted"`
}

// Output is the output of a command on one stream, redacted.
type Output struct {
	Blob    string `json:"blob,omitempty" jsonschema:"Name of the blob with what was kept: 64 hex digits"`
	Bytes   int64  `json:"bytes" jsonschema:"How many bytes the blob has"`
	Dropped int64  `json:"dropped,omitempty" jsonschema:"How many of the bytes that it wrote were not kept"`
	Stream  string `json:"stream" jsonschema:"stdout, stderr or terminal"`
}

// Resources are the resources that a command used.
type Resources struct {
	MaxRSSBytes  int64 `json:"max_rss_bytes,omitempty" jsonschema:"Most memory that one process held, in bytes"`
	SystemMicros int64 `json:"system_us,omitempty" jsonschema:"Processor time in the kernel, in microseconds"`
	UserMicros   int64 `json:"user_us,omitempty" jsonschema:"Processor time outside of it, in microseconds"`
}

// Fork records that another sandbox was forked from this one.
type Fork struct {
	Child    string `json:"child" jsonschema:"Id of the sandbox that was made"`
	Memory   string `json:"memory,omitempty" jsonschema:"The memory image that its processes resume from: sha256 of its manifest"`
	Snapshot string `json:"snapshot" jsonschema:"Snapshot it begins at"`
}

// Grant records that a secret was granted, used, or revoked.
type Grant struct {
	Event string `json:"event" jsonschema:"given, used, refused, revoked or expired"`
	Grant string `json:"grant" jsonschema:"Name of the grant; never the secret"`
	Host  string `json:"host,omitempty" jsonschema:"The host it was used for"`
	Until string `json:"until,omitempty" jsonschema:"Until when it holds"`
}

// Key records that the key that signs the log was changed.
type Key struct {
	New       string `json:"new" jsonschema:"The new verifier key"`
	Old       string `json:"old" jsonschema:"The old verifier key"`
	Statement string `json:"statement" jsonschema:"The note by which the old key signs the new one"`
}

// Limit records that a limit was reached.
type Limit struct {
	Exec  string `json:"exec,omitempty" jsonschema:"Id of the command"`
	Limit string `json:"limit" jsonschema:"The limit, as the policy calls it"`
	Value int64  `json:"value,omitempty" jsonschema:"The limit's value, in its unit"`
}

// Lost records that records were lost.
type Lost struct {
	Count   int64  `json:"count" jsonschema:"How many; 0 where that is not known"`
	Of      string `json:"of,omitempty" jsonschema:"Their kind, where it is known"`
	Reason  string `json:"reason" jsonschema:"Why"`
	Through int64  `json:"through,omitempty" jsonschema:"Of programs, as there"`
}

// Network records a decision of the gate, perhaps made several times.
type Network struct {
	Addr     string `json:"addr,omitempty" jsonschema:"Address"`
	BytesIn  int64  `json:"bytes_in,omitempty" jsonschema:"Bytes to the sandbox"`
	BytesOut int64  `json:"bytes_out,omitempty" jsonschema:"Bytes from the sandbox"`
	Count    int64  `json:"count" jsonschema:"How often"`
	Host     string `json:"host,omitempty" jsonschema:"Name it was resolved from"`
	Method   string `json:"method,omitempty" jsonschema:"Method of the HTTP request"`
	Path     string `json:"path,omitempty" jsonschema:"Path of the HTTP request, redacted"`
	Port     int    `json:"port,omitempty" jsonschema:"Port"`
	Proto    string `json:"proto" jsonschema:"tcp, udp, dns, http, or another"`
	Reason   string `json:"reason,omitempty" jsonschema:"Why"`
	Rule     string `json:"rule,omitempty" jsonschema:"The rule that decided"`
	Verdict  string `json:"verdict" jsonschema:"allow or deny"`
}

// Pause records that the processes of the sandbox were paused or resumed.
type Pause struct {
	Event string `json:"event" jsonschema:"paused or resumed"`
}

// Policy records that the policy of the sandbox was changed.
type Policy struct {
	After  string `json:"after" jsonschema:"Digest of the policy from now on"`
	Before string `json:"before" jsonschema:"Digest of the policy until now"`
	By     string `json:"by,omitempty" jsonschema:"Who changed it, as the daemon knows them"`
	Reason string `json:"reason,omitempty" jsonschema:"Why"`
	Until  string `json:"until,omitempty" jsonschema:"Until when it holds"`
}

// Program records the start of a program, or of many similar ones. With the observer sandbox, the start was
// requested and not observed. A count of 0 is the exit of a program that an earlier record reports; without a
// duration, the program was running when it was recorded. A list has a line for each program, of this body
// with a count of 1.
type Program struct {
	Args          []string `json:"args,omitempty" jsonschema:"Arguments, redacted"`
	Code          int      `json:"code,omitempty" jsonschema:"Exit code"`
	Count         int64    `json:"count" jsonschema:"How many were started that are alike"`
	Dir           string   `json:"dir,omitempty" jsonschema:"Working directory, redacted"`
	DurationNanos int64    `json:"duration_ns,omitempty" jsonschema:"How long it ran, or all of them, in nanoseconds"`
	Exec          string   `json:"exec,omitempty" jsonschema:"Id of the command that it belongs to"`
	Failed        int64    `json:"failed,omitempty" jsonschema:"How many of them failed"`
	List          string   `json:"list,omitempty" jsonschema:"Name of the blob with each of them, where they are several: 64 hex digits"`
	Parent        int64    `json:"parent,omitempty" jsonschema:"Parent process, as the inside numbers it"`
	Path          string   `json:"path" jsonschema:"The program"`
	PID           int64    `json:"pid,omitempty" jsonschema:"Process, as the inside numbers it"`
	Started       string   `json:"started,omitempty" jsonschema:"When it was started, or the first of them"`
	Through       int64    `json:"through,omitempty" jsonschema:"Number, since the sandbox had processes, of the last beginning or end of a program that this and earlier records tell of"`
}

// Propose records that the work of a sandbox was proposed to a reviewer, as a branch of the repository that
// the sandbox works on.
type Propose struct {
	Base     string `json:"base" jsonschema:"The frozen commit of the repository"`
	Branch   string `json:"branch" jsonschema:"The branch that is set"`
	Changes  int64  `json:"changes" jsonschema:"How many files differ between start and work"`
	Marks    int64  `json:"marks,omitempty" jsonschema:"How many of them a host would run or trust later"`
	Snapshot string `json:"snapshot" jsonschema:"Snapshot that work is the files of"`
	Start    string `json:"start" jsonschema:"Commit that the sandbox began with"`
	Tip      string `json:"tip" jsonschema:"Commit that its HEAD is"`
	Work     string `json:"work" jsonschema:"Commit that is proposed: tip, or one on it of what is not committed"`
}

// Rebase records that the work in a repository was moved onto another commit of it.
type Rebase struct {
	Conflicts int64  `json:"conflicts,omitempty" jsonschema:"How many files are left to be resolved"`
	From      string `json:"from" jsonschema:"Commit that it stood on"`
	Snapshot  string `json:"snapshot,omitempty" jsonschema:"Snapshot before"`
	To        string `json:"to" jsonschema:"Commit that it stands on"`
}

// Rekey records a step of re-keying a fork of running processes, before anything of it passes the gate.
type Rekey struct {
	Detail string `json:"detail,omitempty" jsonschema:"What was done, for people"`
	Error  string `json:"error,omitempty" jsonschema:"Why it failed; the sandbox is quarantined then"`
	Step   string `json:"step" jsonschema:"What: certificates, hostname, machine-id, random, ssh-host-keys, hook, gate, or another"`
}

// Rollback records that the sandbox was brought to another snapshot.
type Rollback struct {
	From    string `json:"from" jsonschema:"Snapshot of what was left"`
	InPlace bool   `json:"in_place,omitempty" jsonschema:"Whether processes were left running"`
	Memory  string `json:"memory,omitempty" jsonschema:"The memory image that its processes resume from: sha256 of its manifest"`
	To      string `json:"to" jsonschema:"Snapshot it went to"`
}

// Session records that a client attached to a terminal, or detached from it.
type Session struct {
	By    string `json:"by,omitempty" jsonschema:"Who, as the daemon knows them"`
	Event string `json:"event" jsonschema:"attached or left"`
	Exec  string `json:"exec" jsonschema:"Id of the command"`
}

// Snapshot records that a snapshot of the sandbox was taken.
type Snapshot struct {
	Cause    string `json:"cause" jsonschema:"Why: exec, auto, manual, fork, import or checkout"`
	Changes  int64  `json:"changes,omitempty" jsonschema:"How many paths differ from its parent"`
	Label    string `json:"label,omitempty" jsonschema:"What it was labelled, redacted"`
	Memory   string `json:"memory,omitempty" jsonschema:"The image of what its processes had in memory, if it has one: sha256 of its manifest"`
	Parent   string `json:"parent,omitempty" jsonschema:"The snapshot before"`
	Snapshot string `json:"snapshot" jsonschema:"Its id"`
}

// Start records that the sandbox was started.
type Start struct {
	Enforced []string `json:"enforced,omitempty" jsonschema:"What is enforced"`
	Lacking  []string `json:"lacking,omitempty" jsonschema:"What this host cannot enforce"`
}

// Stop records that the sandbox was stopped.
type Stop struct {
	Reason string `json:"reason,omitempty" jsonschema:"Why"`
}

// Tournament records that candidates were tried in forks.
type Tournament struct {
	Candidates []Candidate `json:"candidates,omitempty" jsonschema:"All of them"`
	Snapshot   string      `json:"snapshot,omitempty" jsonschema:"Snapshot they began at"`
	Winner     string      `json:"winner,omitempty" jsonschema:"Name of the best; absent for none"`
}

// Candidate is one of a tournament.
type Candidate struct {
	Name    string `json:"name" jsonschema:"Its name"`
	Outcome string `json:"outcome" jsonschema:"passed, failed, or why it was ended"`
	Sandbox string `json:"sandbox,omitempty" jsonschema:"Id of its fork"`
	Score   string `json:"score,omitempty" jsonschema:"Its score, as its test wrote it"`
}

// Undone records that an event of an earlier record did not happen, or was reverted.
type Undone struct {
	Reason string `json:"reason" jsonschema:"Why"`
	Seq    int64  `json:"seq" jsonschema:"Seq of that record, which is one of the same sandbox"`
}

// Kind implements Body.
func (*Apply) Kind() Kind { return KindApply }

// Kind implements Body.
func (*Approval) Kind() Kind { return KindApproval }

// Kind implements Body.
func (*Archive) Kind() Kind { return KindArchive }

// Kind implements Body.
func (*Create) Kind() Kind { return KindCreate }

// Kind implements Body.
func (*Delete) Kind() Kind { return KindDelete }

// Kind implements Body.
func (*Denial) Kind() Kind { return KindDenial }

// Kind implements Body.
func (*Drop) Kind() Kind { return KindDrop }

// Kind implements Body.
func (*Exec) Kind() Kind { return KindExec }

// Kind implements Body.
func (*Exit) Kind() Kind { return KindExit }

// Kind implements Body.
func (*Fork) Kind() Kind { return KindFork }

// Kind implements Body.
func (*Grant) Kind() Kind { return KindGrant }

// Kind implements Body.
func (*Key) Kind() Kind { return KindKey }

// Kind implements Body.
func (*Limit) Kind() Kind { return KindLimit }

// Kind implements Body.
func (*Lost) Kind() Kind { return KindLost }

// Kind implements Body.
func (*Network) Kind() Kind { return KindNetwork }

// Kind implements Body.
func (*Pause) Kind() Kind { return KindPause }

// Kind implements Body.
func (*Policy) Kind() Kind { return KindPolicy }

// Kind implements Body.
func (*Program) Kind() Kind { return KindProgram }

// Kind implements Body.
func (*Propose) Kind() Kind { return KindPropose }

// Kind implements Body.
func (*Rebase) Kind() Kind { return KindRebase }

// Kind implements Body.
func (*Rekey) Kind() Kind { return KindRekey }

// Kind implements Body.
func (*Rollback) Kind() Kind { return KindRollback }

// Kind implements Body.
func (*Session) Kind() Kind { return KindSession }

// Kind implements Body.
func (*Snapshot) Kind() Kind { return KindSnapshot }

// Kind implements Body.
func (*Start) Kind() Kind { return KindStart }

// Kind implements Body.
func (*Stop) Kind() Kind { return KindStop }

// Kind implements Body.
func (*Tournament) Kind() Kind { return KindTournament }

// Kind implements Body.
func (*Undone) Kind() Kind { return KindUndone }

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
	KindLabels     Kind = "labels"
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
	KindTrial      Kind = "trial"
	KindUndone     Kind = "undone"
)

// Kinds lists all kinds, in order.
func Kinds() []Kind {
	return []Kind{KindApply, KindApproval, KindArchive, KindCreate, KindDelete, KindDenial, KindDrop, KindExec, KindExit,
		KindFork, KindGrant, KindKey, KindLabels,
		KindLimit, KindLost, KindNetwork, KindPause, KindPolicy, KindProgram, KindPropose, KindRebase, KindRekey,
		KindRollback, KindSession, KindSnapshot, KindStart, KindStop, KindTournament, KindTrial, KindUndone}
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
	case KindLabels:
		return new(Labels)
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
	case KindTrial:
		return new(Trial)
	case KindUndone:
		return new(Undone)
	}
	return nil
}

// Apply records that the changes of a sandbox were applied to a branch of its repository, on the host.
type Apply struct {
	Changes int64    `json:"changes" jsonschema:"Number of changed paths"`
	Marks   []string `json:"marks,omitempty" jsonschema:"Files that the host would later run or trust, and that a person has reviewed"`
	New     string   `json:"new,omitempty" jsonschema:"Commit of the branch afterwards; absent if only files changed"`
	Old     string   `json:"old" jsonschema:"Commit before"`
	Onto    string   `json:"onto,omitempty" jsonschema:"Full name of the branch; absent if only files changed"`
	Repo    string   `json:"repo" jsonschema:"Top of the work tree, on the host"`
	Way     string   `json:"way" jsonschema:"Method: squash, merge, rebase or patch"`
	Work    string   `json:"work" jsonschema:"Commit of the sandbox's files that was applied"`
}

// Approval records that a person answered a pending request.
type Approval struct {
	Answer   string `json:"answer" jsonschema:"Answer: allow or deny"`
	By       string `json:"by" jsonschema:"Caller that answered, as known to the daemon"`
	Question string `json:"question" jsonschema:"Requested destination"`
	Until    string `json:"until,omitempty" jsonschema:"Time when the answer expires; absent if it does not expire"`
}

// Archive records that older segments of the sandbox were compressed. They still verify.
type Archive struct {
	First int64 `json:"first" jsonschema:"Seq of the first record archived"`
	Last  int64 `json:"last" jsonschema:"Seq of the last record archived"`
}

// Create records that the sandbox was created.
type Create struct {
	Base       string   `json:"base" jsonschema:"Source of its root file system"`
	Commit     string   `json:"commit,omitempty" jsonschema:"Commit of the repository that it starts from"`
	Driver     string   `json:"driver,omitempty" jsonschema:"Driver of its root file system"`
	From       string   `json:"from,omitempty" jsonschema:"ID of the sandbox that it is a fork of"`
	Ignored    []string `json:"ignored,omitempty" jsonschema:"Paths inside whose content is not in its history"`
	Labels     []string `json:"labels,omitempty" jsonschema:"Labels, as KEY=VALUE, redacted; records of kind labels have later changes"`
	Repository string   `json:"repository,omitempty" jsonschema:"Work tree, on the host, of the git repository that it works on"`
	Snapshot   string   `json:"snapshot,omitempty" jsonschema:"Snapshot that it starts from"`
	Start      string   `json:"start,omitempty" jsonschema:"Commit, on the one that it starts from, with the included uncommitted changes"`
}

// Delete records that the sandbox was removed or, among the records of host, that its ledger was removed.
type Delete struct {
	Head    string `json:"head,omitempty" jsonschema:"Hash of its last record, if the ledger is removed too"`
	Ledger  bool   `json:"ledger" jsonschema:"Whether its ledger is removed too"`
	Records int64  `json:"records,omitempty" jsonschema:"Number of its records, if the ledger is removed too"`
	Sandbox string `json:"sandbox" jsonschema:"ID of the deleted object"`
}

// Denial records that a file or a system call was refused, perhaps several times.
type Denial struct {
	Count   int64  `json:"count" jsonschema:"Number of times"`
	Exec    string `json:"exec,omitempty" jsonschema:"ID of the command"`
	First   string `json:"first,omitempty" jsonschema:"Time of the first of them, RFC 3339 in UTC"`
	Last    string `json:"last,omitempty" jsonschema:"Time of the last of them, RFC 3339 in UTC"`
	Op      string `json:"op,omitempty" jsonschema:"Why a file was accessed: read, write, execute, enter, create, remove, rename or change"`
	Path    string `json:"path,omitempty" jsonschema:"File"`
	PID     int64  `json:"pid,omitempty" jsonschema:"Process ID in the sandbox"`
	Program string `json:"program,omitempty" jsonschema:"Program of the process, by its path in the sandbox"`
	Reason  string `json:"reason" jsonschema:"Reason of the refusal"`
	Rule    string `json:"rule,omitempty" jsonschema:"What refused the file: hidden, read-only or permission"`
	Syscall string `json:"syscall,omitempty" jsonschema:"System call"`
}

// Drop records that snapshots were removed. Snapshots on top of them did not change.
type Drop struct {
	Reason    string   `json:"reason" jsonschema:"Reason: asked, retention, unreferenced or lost"`
	Snapshots []string `json:"snapshots,omitempty" jsonschema:"IDs"`
}

// Exec records the start of a command.
type Exec struct {
	Args []string `json:"args,omitempty" jsonschema:"Command, redacted"`
	Dir  string   `json:"dir,omitempty" jsonschema:"Working directory, redacted"`
	Env  []string `json:"env,omitempty" jsonschema:"Names of its environment variables; never their values"`
	Exec string   `json:"exec" jsonschema:"ID of the command"`
	TTY  bool     `json:"tty,omitempty" jsonschema:"Whether it has a terminal"`
	User string   `json:"user,omitempty" jsonschema:"User that it runs as in the sandbox"`
}

// Exit records the exit of a command.
type Exit struct {
	Before        string    `json:"before,omitempty" jsonschema:"Snapshot before the command"`
	Changes       []Change  `json:"changes,omitempty" jsonschema:"Paths that it changed, at most 256"`
	ChangesTotal  int64     `json:"changes_total,omitempty" jsonschema:"Number of paths that it changed"`
	Code          int       `json:"code" jsonschema:"Exit code; 255 with a reason if it is not known"`
	Denials       int64     `json:"denials,omitempty" jsonschema:"Number of denials that were recorded of the sandbox while it ran"`
	DurationNanos int64     `json:"duration_ns" jsonschema:"Duration, in nanoseconds"`
	Exec          string    `json:"exec" jsonschema:"ID of the command"`
	Output        []Output  `json:"output,omitempty" jsonschema:"Output"`
	Reason        string    `json:"reason,omitempty" jsonschema:"Reason of its end, if it was ended"`
	Resources     Resources `json:"resources" jsonschema:"Resources used by it and by the descendants that it waited for"`
	Signal        string    `json:"signal,omitempty" jsonschema:"Signal that ended it"`
	Snapshot      string    `json:"snapshot,omitempty" jsonschema:"Snapshot after the command"`
}

// Change is a path that a command changed.
type Change struct {
	Change string `json:"change" jsonschema:"added, changed or removed"`
	Path   string `json:"path" jsonschema:"Path in the sandbox, redacted"`
}

// Output is the output of a command on one stream, redacted.
type Output struct {
	Blob    string `json:"blob,omitempty" jsonschema:"Name of the blob with the kept output: 64 hex digits"`
	Bytes   int64  `json:"bytes" jsonschema:"Size of the blob, in bytes"`
	Dropped int64  `json:"dropped,omitempty" jsonschema:"Number of bytes of its output that were not kept"`
	Stream  string `json:"stream" jsonschema:"stdout, stderr or terminal"`
}

// Resources are the resources that a command used.
type Resources struct {
	MaxRSSBytes  int64 `json:"max_rss_bytes,omitempty" jsonschema:"Most memory that one process held, in bytes"`
	SystemMicros int64 `json:"system_us,omitempty" jsonschema:"Processor time in the kernel, in microseconds"`
	UserMicros   int64 `json:"user_us,omitempty" jsonschema:"Processor time in user mode, in microseconds"`
}

// Fork records that another sandbox was forked from this one.
type Fork struct {
	Child    string `json:"child" jsonschema:"ID of the created sandbox"`
	Memory   string `json:"memory,omitempty" jsonschema:"Memory image that its processes resume from: SHA-256 of its manifest"`
	Snapshot string `json:"snapshot" jsonschema:"Snapshot that it starts from"`
}

// Grant records that a secret was granted, used, or revoked.
type Grant struct {
	By     string `json:"by,omitempty" jsonschema:"Caller that consented or answered, as known to the daemon"`
	Digest string `json:"digest,omitempty" jsonschema:"Digest of the request that was consented to"`
	Event  string `json:"event" jsonschema:"given, used, refused, revoked, expired or reissued for a fork; approved or denied: a pending request with it; consented or withdrawn: the consent to a grant that a project's policy file requests"`
	Grant  string `json:"grant" jsonschema:"Name of the grant; never the secret"`
	Host   string `json:"host,omitempty" jsonschema:"Host that it was used for"`
	Until  string `json:"until,omitempty" jsonschema:"Time when it expires"`
	What   string `json:"what,omitempty" jsonschema:"The request that was consented to or answered, redacted"`
}

// Key records that the key that signs the log was changed.
type Key struct {
	New       string `json:"new" jsonschema:"New verifier key"`
	Old       string `json:"old" jsonschema:"Old verifier key"`
	Statement string `json:"statement" jsonschema:"Statement by which the old key signs the new one"`
}

// Labels records that the labels of the sandbox were changed.
type Labels struct {
	Before []string `json:"before,omitempty" jsonschema:"All labels before, as KEY=VALUE, redacted"`
	By     string   `json:"by,omitempty" jsonschema:"Caller that changed them, as known to the daemon"`
	Labels []string `json:"labels,omitempty" jsonschema:"All labels afterwards, likewise"`
}

// Limit records that a limit was reached.
type Limit struct {
	Exec  string `json:"exec,omitempty" jsonschema:"ID of the command"`
	Limit string `json:"limit" jsonschema:"Name of the limit in the policy"`
	Value int64  `json:"value,omitempty" jsonschema:"Value of the limit, in its unit"`
}

// Lost records that records were lost.
type Lost struct {
	Count   int64  `json:"count" jsonschema:"Number of lost records; 0 if it is not known"`
	Of      string `json:"of,omitempty" jsonschema:"Kind of the lost records, if it is known"`
	Reason  string `json:"reason" jsonschema:"Reason"`
	Through int64  `json:"through,omitempty" jsonschema:"Number of the last start or exit of a program, as in a record of programs"`
}

// Network records a decision of the gate, perhaps made several times.
type Network struct {
	Addr     string `json:"addr,omitempty" jsonschema:"Address"`
	BytesIn  int64  `json:"bytes_in,omitempty" jsonschema:"Bytes to the sandbox"`
	BytesOut int64  `json:"bytes_out,omitempty" jsonschema:"Bytes from the sandbox"`
	Count    int64  `json:"count" jsonschema:"Number of times"`
	Host     string `json:"host,omitempty" jsonschema:"Name that resolved to the address"`
	Method   string `json:"method,omitempty" jsonschema:"Method of the HTTP request"`
	Path     string `json:"path,omitempty" jsonschema:"Path of the HTTP request, redacted"`
	Port     int    `json:"port,omitempty" jsonschema:"Port"`
	Proto    string `json:"proto" jsonschema:"tcp, udp, dns, http, or another"`
	Reason   string `json:"reason,omitempty" jsonschema:"Reason"`
	Rule     string `json:"rule,omitempty" jsonschema:"Rule that decided"`
	Verdict  string `json:"verdict" jsonschema:"allow or deny"`
}

// Pause records that the processes of the sandbox were paused or resumed.
type Pause struct {
	Event string `json:"event" jsonschema:"paused or resumed"`
}

// Policy records that the policy of the sandbox was changed.
type Policy struct {
	After  string `json:"after" jsonschema:"Digest of the policy afterwards"`
	Before string `json:"before" jsonschema:"Digest of the policy before"`
	By     string `json:"by,omitempty" jsonschema:"Caller that changed it, as known to the daemon"`
	Reason string `json:"reason,omitempty" jsonschema:"Reason"`
	Until  string `json:"until,omitempty" jsonschema:"Time when it expires"`
}

// Program records the start of a program, or of many similar ones. With the observer sandbox, the start was
// requested and not observed. A count of 0 is the exit of a program that an earlier record reports; without a
// duration, the program was running when it was recorded. A list has a line for each program, of this body
// with a count of 1.
type Program struct {
	Args          []string `json:"args,omitempty" jsonschema:"Arguments, redacted"`
	Code          int      `json:"code,omitempty" jsonschema:"Exit code"`
	Count         int64    `json:"count" jsonschema:"Number of programs with the same description"`
	Dir           string   `json:"dir,omitempty" jsonschema:"Working directory, redacted"`
	DurationNanos int64    `json:"duration_ns,omitempty" jsonschema:"Duration, or the sum of the durations, in nanoseconds"`
	Exec          string   `json:"exec,omitempty" jsonschema:"ID of the command that it belongs to"`
	Failed        int64    `json:"failed,omitempty" jsonschema:"Number of them that failed"`
	List          string   `json:"list,omitempty" jsonschema:"Name of the blob that lists each of them, if there are several: 64 hex digits"`
	Parent        int64    `json:"parent,omitempty" jsonschema:"Process ID of the parent in the sandbox"`
	Path          string   `json:"path" jsonschema:"Program"`
	PID           int64    `json:"pid,omitempty" jsonschema:"Process ID in the sandbox"`
	Started       string   `json:"started,omitempty" jsonschema:"Start time, of the first if there are several"`
	Through       int64    `json:"through,omitempty" jsonschema:"Number of the last start or exit of a program, counted since the start of the sandbox, that this and earlier records contain"`
}

// Propose records that the work of a sandbox was proposed to a reviewer, as a branch of the repository that
// the sandbox works on.
type Propose struct {
	Base     string `json:"base" jsonschema:"Pinned commit of the repository"`
	Branch   string `json:"branch" jsonschema:"Branch that is set"`
	Changes  int64  `json:"changes" jsonschema:"Number of files that differ between start and work"`
	Marks    int64  `json:"marks,omitempty" jsonschema:"Number of changed files that a host would run or trust later"`
	Snapshot string `json:"snapshot" jsonschema:"Snapshot with the files of work"`
	Start    string `json:"start" jsonschema:"Commit that the sandbox started from"`
	Tip      string `json:"tip" jsonschema:"Commit of its HEAD"`
	Work     string `json:"work" jsonschema:"Proposed commit: the tip, or a commit on it with the uncommitted changes"`
}

// Rebase records that the work in a repository was moved onto another commit of it.
type Rebase struct {
	Conflicts int64  `json:"conflicts,omitempty" jsonschema:"Number of files with unresolved conflicts"`
	From      string `json:"from" jsonschema:"Commit that it was based on"`
	Snapshot  string `json:"snapshot,omitempty" jsonschema:"Snapshot before"`
	To        string `json:"to" jsonschema:"Commit that it is based on"`
}

// Rekey records a step of re-keying a fork of running processes, before anything of it passes the gate.
type Rekey struct {
	Detail string `json:"detail,omitempty" jsonschema:"Description of the event, for people"`
	Error  string `json:"error,omitempty" jsonschema:"Reason of the failure; the sandbox is then quarantined"`
	Step   string `json:"step" jsonschema:"Step: certificates, hostname, machine-id, random, ssh-host-keys, hook, gate, or another"`
}

// Rollback records that the sandbox was brought to another snapshot.
type Rollback struct {
	From    string `json:"from" jsonschema:"Snapshot of the state before"`
	InPlace bool   `json:"in_place,omitempty" jsonschema:"Whether processes were left running"`
	Memory  string `json:"memory,omitempty" jsonschema:"Memory image that its processes resume from: SHA-256 of its manifest"`
	To      string `json:"to" jsonschema:"Snapshot afterwards"`
}

// Session records that a client attached to a terminal, or detached from it.
type Session struct {
	By    string `json:"by,omitempty" jsonschema:"Caller, as known to the daemon"`
	Event string `json:"event" jsonschema:"attached or left"`
	Exec  string `json:"exec" jsonschema:"ID of the command"`
}

// Snapshot records that a snapshot of the sandbox was taken.
type Snapshot struct {
	Cause    string `json:"cause" jsonschema:"Cause: exec, auto, manual, fork, import or checkout"`
	Changes  int64  `json:"changes,omitempty" jsonschema:"Number of paths that differ from its parent"`
	Label    string `json:"label,omitempty" jsonschema:"Message, redacted"`
	Memory   string `json:"memory,omitempty" jsonschema:"Memory image of its processes, if it has one: SHA-256 of its manifest"`
	Parent   string `json:"parent,omitempty" jsonschema:"Snapshot before"`
	Snapshot string `json:"snapshot" jsonschema:"ID"`
}

// Start records that the sandbox was started.
type Start struct {
	Enforced []string `json:"enforced,omitempty" jsonschema:"Enforced protections"`
	Lacking  []string `json:"lacking,omitempty" jsonschema:"Protections that this host cannot enforce"`
}

// Stop records that the sandbox was stopped.
type Stop struct {
	Reason string `json:"reason,omitempty" jsonschema:"Reason"`
}

// Tournament records that candidates were tried in forks.
type Tournament struct {
	Candidates []Candidate `json:"candidates,omitempty" jsonschema:"All candidates"`
	Snapshot   string      `json:"snapshot,omitempty" jsonschema:"Snapshot that they started from"`
	Winner     string      `json:"winner,omitempty" jsonschema:"Name of the winner; absent if there is none"`
}

// Candidate is one of a tournament.
type Candidate struct {
	Name    string `json:"name" jsonschema:"Name"`
	Outcome string `json:"outcome" jsonschema:"passed, failed, or the reason of its end"`
	Sandbox string `json:"sandbox,omitempty" jsonschema:"ID of its fork"`
	Score   string `json:"score,omitempty" jsonschema:"Score, as its test printed it"`
}

// Trial records that a process inside had a command run in a temporary fork of the sandbox.
type Trial struct {
	Command  string `json:"command" jsonschema:"Shell command, cleaned; empty if the daemon was killed"`
	Ended    string `json:"ended,omitempty" jsonschema:"Reason why the trial was ended early; absent if the command exited or timed out"`
	Exit     int64  `json:"exit" jsonschema:"Exit code of the command: 124 if it timed out, 125 if it could not be run or the trial was ended early"`
	Fork     string `json:"fork" jsonschema:"ID of the fork, whose records have this ID"`
	Snapshot string `json:"snapshot,omitempty" jsonschema:"Snapshot that the fork started from"`
}

// Undone records that an event of an earlier record did not happen, or was reverted.
type Undone struct {
	Reason string `json:"reason" jsonschema:"Reason"`
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
func (*Labels) Kind() Kind { return KindLabels }

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
func (*Trial) Kind() Kind { return KindTrial }

// Kind implements Body.
func (*Undone) Kind() Kind { return KindUndone }

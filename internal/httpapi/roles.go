package httpapi

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// Roles are the interfaces that the API serves; each group of routes uses some. Names of sandboxes may be IDs. Every
// method is safe for concurrent use.
//
// The context ends when the client disconnects, except for Exec.
type Roles struct {
	Sandboxes    Sandboxes
	DiskMeter    DiskMeter
	Power        Power
	Commands     Commands
	History      History
	Moves        Moves
	Feed         Feed
	FileOpener   FileOpener
	Network      Network
	Secrets      Secrets
	PortDialer   PortDialer
	Records      Records
	SignedLog    SignedLog
	Repositories Repositories
	Proposals    Proposals
	LayerTravel  LayerTravel
}

// Sandboxes manages the sandboxes of a store.
type Sandboxes interface {
	// Create creates a sandbox. It reads req.Tar before it returns. progress is never nil, does not block, and is
	// called from one goroutine at a time.
	Create(ctx context.Context, req wire.CreateRequest, progress func(wire.Progress)) (wire.Sandbox, error)
	List(ctx context.Context) ([]wire.Sandbox, error)
	// Sandbox returns a sandbox by name or ID.
	Sandbox(ctx context.Context, name string) (wire.Sandbox, error)
	Status(ctx context.Context, name string) (wire.StatusResult, error)
	// SetLife changes how long a sandbox lives, when its processes are stopped, and its labels.
	SetLife(ctx context.Context, name string, req wire.LifeRequest) (wire.Sandbox, error)
	// Remove returns the names of the removed sandboxes, even with an error. Without force, a sandbox with running
	// commands is fault.Conflict.
	Remove(ctx context.Context, names []string, force bool) ([]string, error)
	// RemoveWithLedger removes a sandbox and its records. With the ID of an already removed sandbox, it removes
	// the records.
	RemoveWithLedger(ctx context.Context, name string, force bool) error
	Probe(ctx context.Context) (wire.ProbeReport, error)
	GC(ctx context.Context, req wire.GCRequest, progress func(wire.Progress)) (wire.GCResult, error)
	// Verify checks one sandbox, or the whole store if name is "". Damage is a result, not an error.
	Verify(ctx context.Context, name string, progress func(wire.Progress)) (wire.VerifyResult, error)
}

// DiskMeter measures the disk space that the home uses.
type DiskMeter interface {
	// DiskUse ends with ctx. progress is never nil.
	DiskUse(ctx context.Context, progress func(wire.Progress)) (wire.DiskUse, error)
}

// Power starts and stops the processes of a sandbox.
type Power interface {
	// Start starts a stopped sandbox, and its supervised command if it has one.
	Start(ctx context.Context, name string) (wire.StatusResult, error)
	// Stop stops all processes of a sandbox and captures their changes.
	Stop(ctx context.Context, name string) (wire.StopResult, error)
	// Pause pauses all processes of a live sandbox until Resume.
	Pause(ctx context.Context, name string) (wire.Sandbox, error)
	// Resume resumes a paused sandbox, and retries the failed step of a quarantined fork.
	Resume(ctx context.Context, name string) (wire.Sandbox, error)
	Processes(ctx context.Context, name string) (wire.ProcessesResult, error)
	// SignalProcess sends a signal to one process of the sandbox.
	SignalProcess(ctx context.Context, name string, pid int, sig wire.ProcessSignal) error
}

// Commands runs commands in sandboxes.
type Commands interface {
	// Exec runs a command. stream carries whole frames in both directions: the engine reads Stdin, StdinEOF, Resize
	// and Signal from it, and writes Started, Stdout, Stderr and Dropped, each frame in one Write, from any
	// goroutine. The caller has read the first frame (Request), and writes the last one (Exit, or Failed for an
	// error) from the result. An error of stream means that the client has disconnected: the engine then closes the
	// command's stdin or hangs up its terminal, but still waits for the command and captures its changes. ctx ends
	// when the daemon stops, which must not harm the command. Exec does not return while it reads stream: a stream
	// whose Read may block has a SetReadDeadline, which Exec leaves in the past.
	Exec(ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error)
	// StartExec runs a command without a client; Exec attaches to it, with Attach and Keep, from any offset of its
	// output. It continues when attached clients disconnect, and is captured when it exits. An Exec with Keep and
	// without Attach is both in one. A command that could not be started has an Exit.
	StartExec(ctx context.Context, name string, req wire.ExecRequest) (wire.ExecInfo, error)
	// Execs lists the commands that run, oldest first.
	Execs(ctx context.Context, name string) ([]wire.ExecInfo, error)
	// SignalExec sends a signal ("INT") to a running command.
	SignalExec(ctx context.Context, name, exec, signal string) error
	// CancelExec starts to stop a running command: SIGTERM, two seconds, SIGKILL. It does not wait.
	CancelExec(ctx context.Context, name, exec string) error
	// InputExec sends what it reads from r to a running command, at the command's pace, and with eof closes its
	// stdin.
	InputExec(ctx context.Context, name, exec string, r io.Reader, eof bool) error
	// Run starts the supervised command of a sandbox. An Exec with Attach set to wire.AttachRun is connected to
	// it; it may disconnect without harm.
	Run(ctx context.Context, name string, req wire.RunRequest) (wire.Run, error)
}

// History is the history of a sandbox.
type History interface {
	Log(ctx context.Context, name string) (wire.LogResult, error)
	Head(ctx context.Context, name string) (string, error)
	Branches(ctx context.Context, name string) (wire.BranchesResult, error)
	Show(ctx context.Context, name, ref string) (wire.ShowResult, error)
	Diff(ctx context.Context, name string, req wire.DiffRequest) (wire.DiffResult, error)
	// Patch writes the same difference as unified diffs.
	Patch(ctx context.Context, name string, req wire.DiffRequest, w io.Writer) error
	// DeleteSnapshot deletes a snapshot and returns the head.
	DeleteSnapshot(ctx context.Context, name, ref string) (string, error)
	Tags(ctx context.Context, name string) (map[string]string, error)
	SetTag(ctx context.Context, name, tag, ref string) (wire.TagResult, error) // ref "" is HEAD
	DeleteTag(ctx context.Context, name, tag string) error
}

// Moves takes snapshots, rewinds to them, and forks from them.
type Moves interface {
	Commit(ctx context.Context, name, message string) (wire.CommitResult, error)
	// CommitMemory takes a snapshot with the memory of the processes.
	CommitMemory(ctx context.Context, name, message string) (wire.CommitResult, error)
	Mark(ctx context.Context, name string, req wire.MarkRequest) (wire.CommitResult, error)
	Checkout(ctx context.Context, name string, req wire.CheckoutRequest) (wire.MoveResult, error)
	Undo(ctx context.Context, name string, req wire.UndoRequest) (wire.MoveResult, error)
	Redo(ctx context.Context, name string, req wire.RedoRequest) (wire.MoveResult, error)
	Fork(ctx context.Context, name string, req wire.ForkRequest) (wire.ForkResult, error)
	// Tournament runs candidates in forks and selects a winner. If ctx ends first, it kills the candidates and
	// removes the forks. ctx also ends when the daemon stops.
	Tournament(ctx context.Context, name string, req wire.TournamentRequest,
		progress func(wire.Progress)) (wire.TournamentResult, error)
	// Trial runs a command in a fork, and removes the fork, even if ctx ends.
	Trial(ctx context.Context, name string, req wire.TrialRequest) (wire.Trial, error)
}

// Feed is the events of sandboxes.
type Feed interface {
	// Events calls yield with the events of a sandbox, or of all with name "", until ctx ends or yield returns an
	// error; with a name it returns nil when the sandbox is removed. It starts after the event number after: 0 is all
	// stored events, wire.EventsNow new ones only. The first event has no kind: no later event is missed.
	Events(ctx context.Context, name string, after uint64, yield func(wire.SandboxEvent) error) error
	// Counts returns the number of events of each kind so far.
	Counts() map[string]uint64
}

// FileOpener opens the files of sandboxes.
type FileOpener interface {
	// OpenFiles opens the live files of a sandbox, and starts it if it is stopped. The result is for one request,
	// which must call Done or Close.
	OpenFiles(ctx context.Context, name string) (Files, error)
	// OpenPast opens the files of a snapshot. It does not start the sandbox.
	OpenPast(ctx context.Context, name, ref string) (PastFiles, error)
}

// Secrets lets requests of sandboxes carry secrets. No method starts a sandbox, or returns a secret.
type Secrets interface {
	// ListGrants returns the grants of a sandbox, by name.
	ListGrants(ctx context.Context, name string) (wire.GrantsResult, error)
	// GiveGrant gives a grant, or replaces the sandbox's grant of that name. It is in force on return.
	GiveGrant(ctx context.Context, name, grant string, spec wire.GrantSpec) (wire.Grant, error)
	// RevokeGrant revokes a grant. On return, no request carries its secret.
	RevokeGrant(ctx context.Context, name, grant string) error
	// ListConsents returns the consents to grants that policy files of projects request.
	ListConsents(ctx context.Context) (wire.ConsentsResult, error)
	// Consent consents to requested grants, and returns these consents.
	Consent(ctx context.Context, req wire.ConsentRequest) (wire.ConsentsResult, error)
	// RevokeConsent ends a consent, by its digest.
	RevokeConsent(ctx context.Context, digest string) error
}

// Network is the network of a sandbox, and its policy. No method starts a sandbox.
type Network interface {
	// Net returns the stored network events, and the current state.
	Net(ctx context.Context, name string, req wire.NetRequest) (wire.NetResult, error)
	// FollowNet calls yield with events as they happen, until ctx ends, yield returns an error, or the sandbox is
	// removed, for which it returns nil. The first event has no kind: no later event is missed. The stored events
	// that Last or Since select precede new ones.
	FollowNet(ctx context.Context, name string, req wire.NetRequest, yield func(wire.NetEvent) error) error
	// Why returns the decision of the policy about a destination.
	Why(ctx context.Context, name string, req wire.WhyRequest) (wire.WhyResult, error)
	// Allow changes the rules. The change also applies to running processes.
	Allow(ctx context.Context, name string, req wire.AllowRequest) (wire.AllowResult, error)
	// Asking returns the pending requests.
	Asking(ctx context.Context, name string) (wire.NetAsking, error)
	// Approve allows pending requests, as Allow does; Deny denies them.
	Approve(ctx context.Context, name string, req wire.AnswerRequest) (wire.AnswerResult, error)
	Deny(ctx context.Context, name string, req wire.AnswerRequest) (wire.AnswerResult, error)
	// Policy returns the current policy of a sandbox.
	Policy(ctx context.Context, name string) (wire.PolicyResult, error)
}

// PortDialer connects to listening ports in a sandbox.
type PortDialer interface {
	Ports(ctx context.Context, name string) (wire.PortsResult, error)
	// DialPort connects to a port that a process of the sandbox listens on. It starts a stopped sandbox with a
	// command that may then listen.
	DialPort(ctx context.Context, name string, port int) (net.Conn, error)
}

// Records are the records of a sandbox, by its name or ID, or of a removed one, by its ID; wire.LedgerHost selects
// those of no sandbox. No sandbox is started.
type Records interface {
	LedgerRecords(ctx context.Context, name string, req wire.LedgerRequest) (wire.LedgerResult, error)
	// FollowLedger calls yield with existing records, and then with each new one, until ctx ends, yield returns an
	// error, or the sandbox is removed, for which it returns nil. The first record has no kind: the ledger exists.
	FollowLedger(ctx context.Context, name string, req wire.LedgerRequest, yield func(wire.LedgerRecord) error) error
	// InspectRecord returns a record and its related records.
	InspectRecord(ctx context.Context, name string, seq int64) (wire.LedgerInspection, error)
	// LedgerPrograms returns the programs of a record, starting at from.
	LedgerPrograms(ctx context.Context, name string, seq, from int64) (wire.LedgerPrograms, error)
	// LedgerBlob returns a capture that a record names.
	LedgerBlob(ctx context.Context, name, blob string) ([]byte, error)
	// LedgerSummary summarizes the records of a sandbox.
	LedgerSummary(ctx context.Context, name string) (wire.LedgerSummary, error)
	// VerifyLedger returns Corrupt if the records do not verify.
	VerifyLedger(ctx context.Context, name string, req wire.LedgerVerify) (wire.LedgerVerified, error)
	// ExportLedger writes a bundle for a third party, with consistency proofs from the sizes old.
	ExportLedger(ctx context.Context, name string, w io.Writer, old ...int64) error
	// ArchiveLedger compresses records that are older than a time.
	ArchiveLedger(ctx context.Context, name string, before time.Time) (wire.LedgerArchived, error)
}

// SignedLog is the log that all records are in, and its keys.
type SignedLog interface {
	// LedgerCheckpoint returns the current checkpoint of the log.
	LedgerCheckpoint(ctx context.Context) (wire.LedgerCheckpoint, error)
	// LedgerGrowth is LedgerCheckpoint with a consistency proof from an older size.
	LedgerGrowth(ctx context.Context, old int64) (wire.LedgerCheckpoint, error)
	LedgerKeys(ctx context.Context) (wire.LedgerKeys, error)
	RotateLedgerKey(ctx context.Context) (wire.LedgerKeys, error)
	// LedgerCosign cosigns the checkpoint of another host's log. Corrupt: it did not grow.
	LedgerCosign(ctx context.Context, req wire.LedgerGrowth) (wire.LedgerCosigned, error)
	// LedgerWitness keeps a checkpoint of this log that witnesses cosigned.
	LedgerWitness(ctx context.Context, req wire.LedgerGrowth) (wire.LedgerWitnessed, error)
}

// Repositories works with the host's git repository of a sandbox. It starts a stopped sandbox, whose own git
// lists its commits.
type Repositories interface {
	// GitDiff compares the sandbox's files with its start.
	GitDiff(ctx context.Context, name string, req wire.GitDiffRequest) (wire.GitDiff, error)
	// GitPatch writes the same as a patch that git applies.
	GitPatch(ctx context.Context, name string, req wire.GitDiffRequest, w io.Writer) error
	// GitApply applies the sandbox's changes to a branch.
	GitApply(ctx context.Context, name string, req wire.GitApplyRequest) (wire.GitApplied, error)
	// Propose, ExportProposal and Rebase need a sandbox with a git repository. If ctx ends before the tests have,
	// their forks are removed, and there is no proposal.
	Propose(ctx context.Context, name string, req wire.ProposeRequest) (wire.Proposed, error)
	// ExportProposal writes a tar archive.
	ExportProposal(ctx context.Context, name string, w io.Writer) error
	Rebase(ctx context.Context, name string, req wire.RebaseRequest) (wire.Rebased, error)
}

// Proposals sends proposals through git, and receives them.
type Proposals interface {
	// Sending returns the references to push for a proposed sandbox.
	Sending(ctx context.Context, req wire.SendRequest) (wire.Sending, error)
	// Sent records that a proposal was pushed.
	Sent(ctx context.Context, req wire.SentRequest) error
	// Receive checks a fetched proposal, and stores it if it is valid.
	Receive(ctx context.Context, req wire.ReceiveRequest) (wire.Received, error)
	// Received returns a stored proposal, and checks it again.
	Received(ctx context.Context, at wire.Travelled) (wire.Received, error)
	// ReceivedProposals lists the stored proposals.
	ReceivedProposals(ctx context.Context, dir string) (wire.ReceivedList, error)
	// PulledDiff, PulledPatch and PulledApply are GitDiff, GitPatch and GitApply for a stored proposal.
	PulledDiff(ctx context.Context, at wire.Travelled, req wire.GitDiffRequest) (wire.GitDiff, error)
	PulledPatch(ctx context.Context, at wire.Travelled, req wire.GitDiffRequest, w io.Writer) error
	PulledApply(ctx context.Context, at wire.Travelled, req wire.GitApplyRequest) (wire.GitApplied, error)
}

// LayerTravel sends and receives the layers of a sandbox.
type LayerTravel interface {
	// Packing lists the layers of a sandbox to transfer, and PackLayer writes one of them.
	Packing(ctx context.Context, name string) (wire.Packing, error)
	PackLayer(ctx context.Context, req wire.PackRequest, w io.Writer) error
	// UnpackLayers creates a sandbox from the layers in r.
	UnpackLayers(ctx context.Context, at wire.Travelled, as string, r io.Reader) (wire.Sandbox, error)
}

// PastFiles are readable files. Paths are those of the sandbox, of any bytes except NUL; none leads out of it.
type PastFiles interface {
	Stat(path string, follow bool) (wire.FileInfo, error)
	// List lists depth levels: 0 means 1, a negative depth all.
	List(ctx context.Context, path string, depth int) (wire.FileList, error)
	// Open opens a regular file; the caller closes it.
	Open(path string) (wire.FileInfo, io.ReadSeekCloser, error)
	TarTo(ctx context.Context, path string, w io.Writer) error
	io.Closer
}

// LiveFiles are files that can be changed. Paths are as those of PastFiles.
type LiveFiles interface {
	WriteFile(ctx context.Context, path string, r io.Reader, opt wire.WriteOptions) (wire.FileInfo, error)
	Mkdir(path string, mode uint32, parents bool) error
	Remove(ctx context.Context, path string, recursive bool) error
	Move(from, to string) error
	// TarFrom returns the progress of the unpacking even with an error.
	TarFrom(ctx context.Context, path string, r io.Reader) (wire.UnpackResult, error)
	// Watch calls yield, first with an event without a kind, until ctx ends, yield returns an error, or the directory
	// is removed.
	Watch(ctx context.Context, path string, recursive bool, yield func(wire.FileEvent) error) error
}

// FileSession is one request's use of the live files of a sandbox.
type FileSession interface {
	// OnStop calls fn once, with the cause, if the sandbox is stopped or the files are closed before unhook is
	// called.
	OnStop(fn func(cause error)) (unhook func())
	// Begin names the operation, for the errors of conflicting requests.
	Begin(what string)
	// Done closes the files, and takes a snapshot of the changes.
	Done(ctx context.Context, label string) error
}

// Files are the live files of a sandbox, opened for one request.
type Files interface {
	PastFiles
	LiveFiles
	FileSession
}

// Sockets are the Unix sockets of the line protocol, at most one for each sandbox.
type Sockets interface {
	// OpenSocket opens the socket of a sandbox and returns its path. It exists until it is closed or the sandbox is
	// removed.
	OpenSocket(ctx context.Context, name string) (string, error)
	// CloseSocket closes the socket. It is not an error if there is none.
	CloseSocket(ctx context.Context, name string) error
}

// Grants adds sandboxes to limited tokens.
type Grants interface {
	// Widen adds sandboxes, by ID, to those of a token.
	Widen(ctx context.Context, tokenID string, sandboxes []string) error
}

// Answers store the answers to requests with an Idempotency-Key.
type Answers interface {
	// Answer returns the answer stored under key; nil if there is none, or it has expired.
	Answer(ctx context.Context, key string) ([]byte, error)
	// KeepAnswer stores an answer under key for the duration keep, replacing an earlier one, and deletes expired
	// ones. With 0 it deletes the answer.
	KeepAnswer(ctx context.Context, key string, answer []byte, keep time.Duration) error
}

package httpapi

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// Roles are what the API serves; each group of routes asks those that it needs. Names of
// sandboxes may be ids. Every method may be called from several goroutines at once.
//
// The context ends when the client goes away, except for Exec.
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
	PortDialer   PortDialer
	Records      Records
	SignedLog    SignedLog
	Repositories Repositories
	Proposals    Proposals
	LayerTravel  LayerTravel
}

// Sandboxes are the sandboxes of a store.
type Sandboxes interface {
	// Create makes a sandbox. It reads req.Tar before it returns. progress is
	// never nil, is cheap, and is called from one goroutine at a time.
	Create(ctx context.Context, req wire.CreateRequest, progress func(wire.Progress)) (wire.Sandbox, error)
	List(ctx context.Context) ([]wire.Sandbox, error)
	// Sandbox finds a sandbox by name or id.
	Sandbox(ctx context.Context, name string) (wire.Sandbox, error)
	Status(ctx context.Context, name string) (wire.StatusResult, error)
	// SetLife changes how long a sandbox lives, and when its processes are stopped.
	SetLife(ctx context.Context, name string, req wire.LifeRequest) (wire.Sandbox, error)
	// Remove gives the names that were removed, also together with an error.
	// Without force a sandbox with running commands is fault.Conflict.
	Remove(ctx context.Context, names []string, force bool) ([]string, error)
	// RemoveWithLedger removes a sandbox with its records; also the records of one that
	// was removed before, by its id.
	RemoveWithLedger(ctx context.Context, name string, force bool) error
	Probe(ctx context.Context) (wire.ProbeReport, error)
	GC(ctx context.Context, req wire.GCRequest, progress func(wire.Progress)) (wire.GCResult, error)
	// Verify checks one sandbox, or with name "" the whole store. Damage is a
	// result, not an error.
	Verify(ctx context.Context, name string, progress func(wire.Progress)) (wire.VerifyResult, error)
}

// DiskMeter measures what the home takes on the disk.
type DiskMeter interface {
	// DiskUse ends with ctx. progress is never nil.
	DiskUse(ctx context.Context, progress func(wire.Progress)) (wire.DiskUse, error)
}

// Power starts and stops the processes of a sandbox.
type Power interface {
	// Start starts a stopped sandbox, and its supervised command if it has one.
	Start(ctx context.Context, name string) (wire.StatusResult, error)
	// Stop ends all processes of a sandbox and captures what they left.
	Stop(ctx context.Context, name string) (wire.StopResult, error)
	// Pause has all processes of a live sandbox stand still until Resume.
	Pause(ctx context.Context, name string) (wire.Sandbox, error)
	// Resume ends a Pause, and tries again what failed where a fork is quarantined.
	Resume(ctx context.Context, name string) (wire.Sandbox, error)
	Processes(ctx context.Context, name string) (wire.ProcessesResult, error)
	// SignalProcess sends a signal to one process of the sandbox.
	SignalProcess(ctx context.Context, name string, pid int, sig wire.ProcessSignal) error
}

// Commands runs commands in sandboxes.
type Commands interface {
	// Exec runs a command. stream carries whole frames both ways: the engine
	// reads Stdin, StdinEOF, Resize and Signal from it, and writes Started,
	// Stdout, Stderr and Dropped, each frame in one Write, from any goroutine.
	// The first frame (Request) was read already, the last one (Exit, or Failed
	// for an error) is written by the caller from the result. An error of
	// stream means that the client is gone: the engine then ends the command's
	// stdin or hangs its terminal up, sees the command through all the same, and
	// captures what it changed. ctx ends when the daemon stops, which must not
	// harm the command. Exec does not return while it reads stream: one whose
	// Read may block has a SetReadDeadline, which Exec leaves in the past.
	Exec(ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error)
	// StartExec runs a command that nobody is connected to; Exec attaches to it,
	// with Attach and Keep, from any offset of its output. It runs on when who is
	// attached goes away, and is captured when it ends. An Exec with Keep and
	// without Attach is both in one. A command that could not be started has an
	// Exit.
	StartExec(ctx context.Context, name string, req wire.ExecRequest) (wire.ExecInfo, error)
	// Execs lists the commands that run, oldest first.
	Execs(ctx context.Context, name string) ([]wire.ExecInfo, error)
	// SignalExec sends a signal ("INT") to a running command.
	SignalExec(ctx context.Context, name, exec, signal string) error
	// CancelExec begins to end a running command: SIGTERM, two seconds, SIGKILL.
	CancelExec(ctx context.Context, name, exec string) error
	// InputExec gives a running command what r holds, at the pace that it reads it,
	// and with eof the end of its input.
	InputExec(ctx context.Context, name, exec string, r io.Reader, eof bool) error
	// Run starts the supervised command of a sandbox; an Exec with Attach set to
	// wire.AttachRun is then connected to it, and may go away without harm.
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
	// DeleteSnapshot gives the head.
	DeleteSnapshot(ctx context.Context, name, ref string) (string, error)
	Tags(ctx context.Context, name string) (map[string]string, error)
	SetTag(ctx context.Context, name, tag, ref string) (wire.TagResult, error) // ref "" is HEAD
	DeleteTag(ctx context.Context, name, tag string) error
}

// Moves takes snapshots, goes back to them, and branches off from them.
type Moves interface {
	Commit(ctx context.Context, name, message string) (wire.CommitResult, error)
	// CommitMemory takes a snapshot with what processes have in memory.
	CommitMemory(ctx context.Context, name, message string) (wire.CommitResult, error)
	Mark(ctx context.Context, name string, req wire.MarkRequest) (wire.CommitResult, error)
	Checkout(ctx context.Context, name string, req wire.CheckoutRequest) (wire.MoveResult, error)
	Undo(ctx context.Context, name string, req wire.UndoRequest) (wire.MoveResult, error)
	Redo(ctx context.Context, name string, req wire.RedoRequest) (wire.MoveResult, error)
	Fork(ctx context.Context, name string, req wire.ForkRequest) (wire.ForkResult, error)
	// Tournament runs candidates in forks and finds the one that wins. When ctx
	// ends before, it kills them and removes the forks; ctx also ends when the
	// daemon stops.
	Tournament(ctx context.Context, name string, req wire.TournamentRequest,
		progress func(wire.Progress)) (wire.TournamentResult, error)
	// Trial runs a command in a fork, which is removed then, also when ctx ends.
	Trial(ctx context.Context, name string, req wire.TrialRequest) (wire.Trial, error)
}

// Feed is what happens in sandboxes.
type Feed interface {
	// Events calls yield with what happens in a sandbox, or with name "" in all,
	// until ctx ends or yield gives an error; with a name also until the sandbox
	// is removed, and then gives nil. It tells what came after number after: 0 is
	// all that is remembered, wire.EventsNow what comes from now on. The first
	// event has no kind: nothing is missed any more.
	Events(ctx context.Context, name string, after uint64, yield func(wire.SandboxEvent) error) error
	// Counts gives how many events of each kind there were so far.
	Counts() map[string]uint64
}

// FileOpener opens the files of sandboxes.
type FileOpener interface {
	// OpenFiles opens the live files of a sandbox, which is started when it is not
	// live. It is for one request, which calls Done or Close in the end.
	OpenFiles(ctx context.Context, name string) (Files, error)
	// OpenPast opens the files of a snapshot, and starts nothing.
	OpenPast(ctx context.Context, name, ref string) (PastFiles, error)
}

// Network is what a sandbox reaches, and may use. Nothing is started.
type Network interface {
	// Net tells what happened, as far as it is kept, and what is now.
	Net(ctx context.Context, name string, req wire.NetRequest) (wire.NetResult, error)
	// FollowNet calls yield with events as they happen, until ctx ends, yield gives an
	// error, or the sandbox is removed, which gives nil. The first one has no kind:
	// nothing is missed any more. Before what comes from now on come those that are
	// asked for, by Last or Since.
	FollowNet(ctx context.Context, name string, req wire.NetRequest, yield func(wire.NetEvent) error) error
	// Why says what would be decided.
	Why(ctx context.Context, name string, req wire.WhyRequest) (wire.WhyResult, error)
	// Allow changes the rules, for processes that run as well.
	Allow(ctx context.Context, name string, req wire.AllowRequest) (wire.AllowResult, error)
	// Asking tells what waits for a person.
	Asking(ctx context.Context, name string) (wire.NetAsking, error)
	// Approve allows what waits for a person, as Allow does; Deny denies it.
	Approve(ctx context.Context, name string, req wire.AnswerRequest) (wire.AnswerResult, error)
	Deny(ctx context.Context, name string, req wire.AnswerRequest) (wire.AnswerResult, error)
	// Policy tells what a sandbox may use now.
	Policy(ctx context.Context, name string) (wire.PolicyResult, error)
}

// PortDialer connects to what listens in a sandbox.
type PortDialer interface {
	Ports(ctx context.Context, name string) (wire.PortsResult, error)
	// DialPort connects to a port that a process of the sandbox listens on. A sandbox
	// that is stopped is started, if it has a command that may then listen.
	DialPort(ctx context.Context, name string, port int) (net.Conn, error)
}

// Records is what is recorded of a sandbox, by its name or id, or of one that was removed, by its
// id; wire.LedgerHost has the records of none. Nothing is started.
type Records interface {
	LedgerRecords(ctx context.Context, name string, req wire.LedgerRequest) (wire.LedgerResult, error)
	// FollowLedger calls yield with records, and then with each that is appended, until
	// ctx ends, yield gives an error, or the sandbox is removed, which gives nil. The
	// first one has no kind: there is such a ledger.
	FollowLedger(ctx context.Context, name string, req wire.LedgerRequest, yield func(wire.LedgerRecord) error) error
	// InspectRecord gives a record with those that belong to it.
	InspectRecord(ctx context.Context, name string, seq int64) (wire.LedgerInspection, error)
	// LedgerPrograms gives the programs that one stands for, from one on.
	LedgerPrograms(ctx context.Context, name string, seq, from int64) (wire.LedgerPrograms, error)
	// LedgerBlob gives a capture that a record names.
	LedgerBlob(ctx context.Context, name, blob string) ([]byte, error)
	// LedgerSummary gives what the records tell of the sandbox as a whole.
	LedgerSummary(ctx context.Context, name string) (wire.LedgerSummary, error)
	// VerifyLedger gives Corrupt for records that are not as they were appended.
	VerifyLedger(ctx context.Context, name string, req wire.LedgerVerify) (wire.LedgerVerified, error)
	// ExportLedger writes the bundle that a stranger verifies, who may hold checkpoints of
	// older sizes.
	ExportLedger(ctx context.Context, name string, w io.Writer, old ...int64) error
	// ArchiveLedger compresses records that are older than a time.
	ArchiveLedger(ctx context.Context, name string, before time.Time) (wire.LedgerArchived, error)
}

// SignedLog is the log that all records are in, and its keys.
type SignedLog interface {
	// LedgerCheckpoint gives the log as it is now.
	LedgerCheckpoint(ctx context.Context) (wire.LedgerCheckpoint, error)
	// LedgerGrowth gives the same with the proof that it grew from an older size.
	LedgerGrowth(ctx context.Context, old int64) (wire.LedgerCheckpoint, error)
	LedgerKeys(ctx context.Context) (wire.LedgerKeys, error)
	RotateLedgerKey(ctx context.Context) (wire.LedgerKeys, error)
	// LedgerCosign cosigns the checkpoint of another host's log. Corrupt: it did not grow.
	LedgerCosign(ctx context.Context, req wire.LedgerGrowth) (wire.LedgerCosigned, error)
	// LedgerWitness keeps a checkpoint of this log that witnesses cosigned.
	LedgerWitness(ctx context.Context, req wire.LedgerGrowth) (wire.LedgerWitnessed, error)
}

// Repositories is about the git repository of the host that a sandbox works on. A sandbox that is
// stopped is started: its own git writes its commits down.
type Repositories interface {
	// GitDiff tells how its files differ from what it began with.
	GitDiff(ctx context.Context, name string, req wire.GitDiffRequest) (wire.GitDiff, error)
	// GitPatch writes the same as a patch that git applies.
	GitPatch(ctx context.Context, name string, req wire.GitDiffRequest, w io.Writer) error
	// GitApply puts what it changed onto a branch.
	GitApply(ctx context.Context, name string, req wire.GitApplyRequest) (wire.GitApplied, error)
	// Propose, ExportProposal and Rebase are for a sandbox that works on a git repository.
	// When ctx ends before the tests have, their forks are removed, and nothing is proposed.
	Propose(ctx context.Context, name string, req wire.ProposeRequest) (wire.Proposed, error)
	// ExportProposal writes a tar archive.
	ExportProposal(ctx context.Context, name string, w io.Writer) error
	Rebase(ctx context.Context, name string, req wire.RebaseRequest) (wire.Rebased, error)
}

// Proposals is what travels by git: proposals that are sent, and those that were received.
type Proposals interface {
	// Sending says what is to be pushed of a sandbox that was proposed.
	Sending(ctx context.Context, req wire.SendRequest) (wire.Sending, error)
	// Sent notes that it was.
	Sent(ctx context.Context, req wire.SentRequest) error
	// Receive looks at what was fetched, and takes it in when nothing is wrong with it.
	Receive(ctx context.Context, req wire.ReceiveRequest) (wire.Received, error)
	// Received looks anew at what was taken in.
	Received(ctx context.Context, at wire.Travelled) (wire.Received, error)
	// ReceivedProposals lists what was taken in.
	ReceivedProposals(ctx context.Context, dir string) (wire.ReceivedList, error)
	// PulledDiff, PulledPatch and PulledApply are GitDiff, GitPatch and GitApply of what was
	// taken in.
	PulledDiff(ctx context.Context, at wire.Travelled, req wire.GitDiffRequest) (wire.GitDiff, error)
	PulledPatch(ctx context.Context, at wire.Travelled, req wire.GitDiffRequest, w io.Writer) error
	PulledApply(ctx context.Context, at wire.Travelled, req wire.GitApplyRequest) (wire.GitApplied, error)
}

// LayerTravel sends and receives the layers of a sandbox.
type LayerTravel interface {
	// Packing lists the layers of a sandbox that travel, and PackLayer writes one of them.
	Packing(ctx context.Context, name string) (wire.Packing, error)
	PackLayer(ctx context.Context, req wire.PackRequest, w io.Writer) error
	// UnpackLayers makes a sandbox of the layers that r gives.
	UnpackLayers(ctx context.Context, at wire.Travelled, as string, r io.Reader) (wire.Sandbox, error)
}

// PastFiles are files that can be read. Paths are those of the sandbox, of any bytes
// but NUL; none leads out of it.
type PastFiles interface {
	Stat(path string, follow bool) (wire.FileInfo, error)
	// List goes depth levels down: 0 is 1, below 0 is all.
	List(ctx context.Context, path string, depth int) (wire.FileList, error)
	// Open opens a regular file; the caller closes it.
	Open(path string) (wire.FileInfo, io.ReadSeekCloser, error)
	TarTo(ctx context.Context, path string, w io.Writer) error
	io.Closer
}

// LiveFiles are files that change, and can be changed. Paths are as those of PastFiles.
type LiveFiles interface {
	WriteFile(ctx context.Context, path string, r io.Reader, opt wire.WriteOptions) (wire.FileInfo, error)
	Mkdir(path string, mode uint32, parents bool) error
	Remove(ctx context.Context, path string, recursive bool) error
	Move(from, to string) error
	// TarFrom tells also with an error what came of the archive.
	TarFrom(ctx context.Context, path string, r io.Reader) (wire.UnpackResult, error)
	// Watch calls yield, first with an event of no kind, until ctx ends, yield gives
	// an error, or what is watched is gone.
	Watch(ctx context.Context, path string, recursive bool, yield func(wire.FileEvent) error) error
}

// FileSession is one request's use of the live files of a sandbox.
type FileSession interface {
	// OnStop calls fn, once and with the cause, when the sandbox is stopped meanwhile
	// or the files are closed, until unhook.
	OnStop(fn func(cause error)) (unhook func())
	// Begin says what the request does, for the errors of those that conflict with it.
	Begin(what string)
	// Done closes the files, and takes a snapshot of what was written.
	Done(ctx context.Context, label string) error
}

// Files are the live files of a sandbox, opened for one request.
type Files interface {
	PastFiles
	LiveFiles
	FileSession
}

// Sockets are where the line protocol is spoken, one for each sandbox that it was
// asked for.
type Sockets interface {
	// OpenSocket gives the path of a sandbox's socket, which is there until it is
	// closed or the sandbox is removed.
	OpenSocket(ctx context.Context, name string) (string, error)
	// CloseSocket closes it. That there is none is no error.
	CloseSocket(ctx context.Context, name string) error
}

// Grants widens what a limited token sees.
type Grants interface {
	// Widen adds sandboxes, by id, to those of a token.
	Widen(ctx context.Context, tokenID string, sandboxes []string) error
}

// Answers remember what was answered to requests with an Idempotency-Key.
type Answers interface {
	// Answer finds what is kept under key; nil when nothing is, or no longer.
	Answer(ctx context.Context, key string) ([]byte, error)
	// KeepAnswer keeps something under key for so long, in the place of what is kept
	// there, and sweeps what has expired. With 0 nothing is kept there any more.
	KeepAnswer(ctx context.Context, key string, answer []byte, keep time.Duration) error
}

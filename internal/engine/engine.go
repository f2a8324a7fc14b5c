//go:build linux

// Package engine creates, runs, snapshots, rewinds and forks sandboxes. It owns the order of operations
// and the locks, and leaves bytes to layer, records to meta, presentation to rootfs and confinement to
// box, which it knows through interfaces declared here. Only daemon may import it; the servers use it
// through interfaces that they declare.
//
// Locks are taken in the order of docs/design/locks.md, which a test enforces. No I/O is done under
// Engine.mu.
package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/bases"
	"github.com/coppice-dev/coppice/internal/boxfs"
	"github.com/coppice-dev/coppice/internal/command"
	"github.com/coppice-dev/coppice/internal/egress"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitrefs"
	"github.com/coppice-dev/coppice/internal/gitwork"
	"github.com/coppice-dev/coppice/internal/grants"
	"github.com/coppice-dev/coppice/internal/history"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/lifetime"
	"github.com/coppice-dev/coppice/internal/livefiles"
	"github.com/coppice-dev/coppice/internal/masks"
	"github.com/coppice-dev/coppice/internal/memory"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/restore"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/stacks"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/tournament"
	"github.com/coppice-dev/coppice/internal/travel"
	"github.com/coppice-dev/coppice/internal/upkeep"
	"github.com/coppice-dev/coppice/internal/vfs"
	"github.com/coppice-dev/coppice/internal/worktree"
)

// BoxConfig describes a box to start.
type BoxConfig struct {
	ID     timeline.SandboxID
	Name   string
	RunDir string // holds the keeper's socket and log
	Spec   rootspec.Spec
	Tier   string
	User   string // root, me, or a name in the sandbox's /etc/passwd
	Host   bool   // the base is the host itself
	Net    string
	Env    []string
	Limits wire.Limits
	Self   string // wire.SelfOff, SelfRead, SelfRewind
	DiskBy string // what already enforces Limits.Disk; set if there is a limit
	Strong bool   // refuse to start if a protection or limit would be weaker than it should be
	// Require names protections that the sandbox has run with; Start fails without them.
	Require []string
	// Known are findings about the host from earlier starts in this home. Start fails if the host no longer provides a
	// protection that one of them had.
	Known  []meta.Finding
	Trace  bool // record the programs that are started
	Hidden int  // how many paths of the base Spec hides
	// HiddenAt are the paths that the policy hides, as rootfs.Made.Hidden.
	HiddenAt []string
	// Evidence says what is recorded; the keeper buffers output until it is recorded.
	Evidence policy.Evidence
	Access   rootspec.Access
	// Dirs are the working directories of commands that name none: the first that exists is used.
	Dirs []string
	// Shared are directories of the host that are mounted read-only at rootspec.SharedPath.
	Shared []string
	Tokens []DecoyToken // the tokens of Access.Decoys
	Stops  bool         // kill all processes when a token is used

	// Runtime is the OCI runtime of tier container, a name or a path.
	Runtime string
	// Confine says how tier workspace confines commands, and Places what it needs of the host for that.
	Confine policy.Confine
	Places  Places

	// JournalDir is where the keeper and the gate record uses of decoys, connections, and refused calls; "" in tier
	// workspace without confinement. JournalKey encrypts the journal.
	JournalDir string
	JournalKey []byte
	// Image is a directory with a memory image: processes resume from it, and the gate lets nothing pass until Release.
	// Init is the file of the program that is PID 1 in the image; "" is the program of this process. Client is that of
	// the program coppice; "" if the sandbox did not show it.
	Image, Init, Client string
	// Phases are, in tier supervised, the policies of the network, in the order of time.
	Phases []Phase
	Asks   bool // connections that no rule covers wait for a decision
	// Secrets are the grants.
	Secrets plan.Secrets
}

// Phase is a policy that is in force until a time.
type Phase = policies.Phase

// DecoyToken is a token, and the path inside the sandbox of the decoy that contains it.
type DecoyToken = egress.DecoyToken

// Boxes starts and finds boxes; see package box.
type Boxes interface {
	Start(ctx context.Context, c BoxConfig) (Box, Enforced, error)
	// Attach finds the box whose keeper listens in runDir; a NotFound fault if none does. Conflict is that the keeper
	// has ended, and processes of the box may be left.
	Attach(ctx context.Context, runDir string) (Box, error)
	// Kill kills the keeper of a run directory and all processes of its box, whether or not the keeper
	// answers. It returns NotFound if there is none.
	Kill(ctx context.Context, runDir string) error
	// LeftPrograms returns the starts and exits of programs that were not recorded yet when a keeper
	// with this JournalKey exited, until ForgetPrograms is called. It returns NotFound if there are
	// none.
	LeftPrograms(runDir string, journalKey []byte) (wire.ProgramEvents, error)
	ForgetPrograms(runDir string) error
	// CanLimitCPU returns why no box can have a CPU limit; nil if one can.
	CanLimitCPU() error
	// Inherited returns the protections of a sandbox that a fork in another tier needs too.
	Inherited(protections []string, from, to string) []string
	// Needs returns what a host must have for a protection.
	Needs(protection string) string
}

// Enforced describes what a box enforces.
type Enforced struct {
	Tier  string
	Items []wire.Enforcement
	// Protections are those Items that later starts require.
	Protections []string
	// Found are the findings about the host that the start made.
	Found []meta.Finding
}

// Box is the keeper of a live sandbox. Its methods are safe for concurrent use.
type Box interface {
	// Pause suspends every process until Resume, which a later daemon may call. Commands fail with a
	// Conflict meanwhile.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Paused reports whether the processes are suspended by Pause.
	Paused(ctx context.Context) (bool, error)
	// Rekey gives a box that was started with an Image its own identity. seed is 32 fresh random bytes. It stops at the
	// first step that fails, which the error names.
	Rekey(ctx context.Context, hostname string, seed []byte) ([]RekeyStep, error)
	// Release opens the gate of a box that was started with an Image.
	Release(ctx context.Context) error
	// Exec runs a command. Frames are sent over the returned stream, which the caller closes. In the
	// last one, "alone" says that no process was left when the command was reaped.
	Exec(ctx context.Context, req wire.ExecRequest) (io.ReadWriteCloser, error)
	// Freeze suspends every process until f is thawed or the connection is closed.
	Freeze(ctx context.Context) (f Frozen, err error)
	// Procs returns the number of processes that belong to the user.
	Procs(ctx context.Context) (int, error)
	// Stop ends all processes, with SIGTERM and after grace with SIGKILL, and then the keeper. It waits until the
	// mounts are gone.
	Stop(ctx context.Context, grace time.Duration) error
	// Gone returns a channel that is closed when the keeper has exited, and no process of the box is left.
	Gone() <-chan struct{}
	// Wait waits for the exit of a command that was started with Keep. It can be called until Forget.
	Wait(ctx context.Context, exec string) (Ended, error)
	// Forget discards the exit of a command that was started with Keep, once the exit is recorded.
	Forget(ctx context.Context, exec string) error
	// Execs lists running commands, and commands started with Keep that have exited and are not forgotten: these have
	// an Exit.
	Execs(ctx context.Context) ([]wire.ExecInfo, error)
	// Signal sends a signal ("TERM") to a running command.
	Signal(ctx context.Context, exec, name string) error
	// Cancel ends a running command: SIGTERM, and SIGKILL two seconds later.
	Cancel(ctx context.Context, exec string) error
	// Input sends r to the input of a running command, and closes the input if eof is set.
	Input(ctx context.Context, exec string, r io.Reader, eof bool) error
	// Active waits until a process has run after the clock had the value since (0 is before everything), and returns
	// the clock. It returns Unavailable if the keeper has exited.
	Active(ctx context.Context, since uint64) (clock uint64, err error)
	// Ran is Active with a clock that Processes, Ports and similar calls do not advance.
	Ran(ctx context.Context, since uint64) (clock uint64, err error)

	Processes(ctx context.Context) (wire.ProcessesResult, error)
	// SignalProcess sends a signal to one process. It returns NotFound if the process has exited, or
	// its PID belongs to another one.
	SignalProcess(ctx context.Context, pid int, sig wire.ProcessSignal) error
	// Ports lists the TCP ports that processes listen on.
	Ports(ctx context.Context) (wire.PortsResult, error)
	// DialPort connects to one of these ports and to no other address. It returns NotFound if nothing listens there.
	DialPort(ctx context.Context, port int) (net.Conn, error)
	// SetPolicy puts policies in force, each until its end, and cuts connections that are no longer
	// allowed. It returns Unsupported except in tier supervised.
	SetPolicy(ctx context.Context, phases []Phase) error
	// SetSecrets replaces the grants; see grants.Box.
	SetSecrets(ctx context.Context, s plan.Secrets) error
	// Net returns the open connections and the traffic, in tier supervised.
	Net(ctx context.Context) (wire.NetNow, error)
	// Programs returns the starts and exits of programs after the event with number after, as soon as there are any.
	// The caller has stored the events up to kept. It returns Unsupported if the box does not record programs.
	Programs(ctx context.Context, after, kept uint64) (wire.ProgramEvents, error)
	// ProgramsNow is Programs without waiting.
	ProgramsNow(ctx context.Context, after, kept uint64) (wire.ProgramEvents, error)
	// OpenRoot opens the root as processes see it, without pausing them. The box does not exit as idle
	// until the root is closed.
	OpenRoot(ctx context.Context) (*InsideRoot, error)
}

// InsideRoot is a live root as the processes of its box see it.
type InsideRoot struct {
	// Dir has the box's own mounts; nil if the root is the plain tree of its driver and not a mount.
	Dir  *os.File
	User boxfs.User // the user that commands run as
	// Unseen are directories whose files are in the box's memory, and not in Dir.
	Unseen []string
	Close  func() error // releases everything but Dir
}

// Frozen is a box whose processes are paused.
type Frozen interface {
	Procs() int
	// Suspects returns the files that can be written through shared mappings.
	Suspects() layer.Suspects
	// Root returns the live root; the caller closes it.
	Root(ctx context.Context) (*LiveRoot, error)
	// Programs returns the programs that were started since the last freeze, oldest first, with BoxConfig.Trace.
	Programs() []wire.Program
	// Held reports whether no process has run since the freeze, or since the last call. If one has, all are stopped
	// again, and Procs and Suspects are as of now.
	Held(ctx context.Context) (bool, error)
	Thaw() error
	// Drop thaws without waiting, even while Thaw waits.
	Drop()
	// Save writes the memory of the processes into an existing, empty directory. It returns the programs of the image,
	// which the caller closes.
	Save(ctx context.Context, dir string) (memory.Programs, error)
}

// RekeyStep is a step of Rekey.
type RekeyStep = restore.Step

// LiveRoot describes the root of a frozen box.
type LiveRoot struct {
	// Dir is the root as processes see it; nil if it is the plain tree of its driver and not a mount.
	Dir    *os.File
	Owners layer.Owners // how stored ids appear in Dir
	// The files that processes have mapped, by inode and by path; AnyMapped means that any file may be.
	Inodes    []uint64
	Paths     []string
	AnyMapped bool
}

// Close closes the root.
func (r *LiveRoot) Close() error {
	if r.Dir == nil {
		return nil
	}
	return r.Dir.Close()
}

// HostQuestion says what to probe on the host.
type HostQuestion struct {
	Quick  bool // only what choosing a tier and a driver needs
	GVisor bool // also probe tier gvisor, by starting a sandbox
	// Runtimes are OCI runtimes, names or paths, with which tier container is probed likewise; "" is the default one.
	Runtimes []string
}

// Config configures an Engine.
type Config struct {
	Home    string // COPPICE_HOME, absolute
	FS      vfs.FS // the file system that the engine writes Home through; nil: the real one
	DB      *meta.DB
	Layers  *layer.Store
	Drivers map[string]rootfs.Driver
	Boxes   Boxes
	Memory  *memory.Store // stores the memory of processes; nil: memory is not stored
	// MemoryFacts returns facts that must be equal where a memory image is taken and where it is resumed. BuildFacts
	// returns facts that must also be equal for an image that was stored without its init.
	MemoryFacts func() (map[string]string, error)
	BuildFacts  func() (map[string]string, error)
	// Understands reports whether an image with another protocol, which is one of its MemoryFacts, can be resumed
	// nevertheless.
	Understands func(protocol string) bool
	// Broker is the process that has the values of secrets, and BrokerSocket its socket for gates.
	Broker       grants.Broker
	BrokerSocket string
	Repos        Repos          // opens the git repositories of the host
	UID          uint32         // user id, on the host, of the user that the engine runs for
	GID          uint32         // group id of that user
	Ledger       *ledger.Ledger // where operations are recorded
	Witness      *ledger.Witness
	Logger       *slog.Logger
	// Caller returns the client that makes a request, for the audit log; nil: no client is named.
	Caller func(context.Context) string
	// MayGrant refuses a caller that may not give grants to a sandbox that it creates; nil: every caller may.
	MayGrant func(context.Context) error
	Now      func() time.Time // nil: time.Now
	Rand     io.Reader        // nil: crypto/rand
	BootID   string           // of the running kernel
	Root     bool             // the daemon runs as real root
	Homes    []string         // what ~ expands to in a policy
	// Patience is how long a call waits for another operation on the same sandbox before it fails with a Conflict that
	// names that operation; 0: a minute.
	Patience time.Duration
	// ProbeHost tries what the host provides, and reports it.
	ProbeHost func(ctx context.Context, q HostQuestion) (wire.ProbeReport, error)
	// HostImport returns the options of a host-copy import; see package rootfs.
	HostImport func() (layer.ImportOptions, error)
	// HostRoot is the directory that a host-copy imports; "": /.
	HostRoot string
	// HostPrint returns a cheap fingerprint of the host's system directories. The engine uses it to detect that they
	// changed below a history.
	HostPrint func() string
}

// Engine carries out the operations on sandboxes. Open makes one. All methods are safe for concurrent
// use, and its exported fields are not changed after Open.
type Engine struct {
	Config

	// Records answers queries about the audit log.
	Records *audit.Reader
	// Book writes the audit log.
	Book *audit.Book
	// Feed publishes events of sandboxes.
	Feed *events.Bus
	// Policies computes the policies of sandboxes.
	Policies *policies.Policies
	// Upkeep finalizes, merges and removes layers.
	Upkeep *upkeep.Upkeep
	// Images stores the memory of processes.
	Images *images.Images
	// Bases finds and makes the bases of sandboxes.
	Bases *bases.Bases
	// Egress controls the connections between sandboxes and the network.
	Egress *egress.Control
	// Lifetimes removes expired sandboxes and stops idle ones.
	Lifetimes *lifetime.Lifetimes
	// Tournaments tries commands in forks.
	Tournaments *tournament.Tournaments
	// Restorer pauses and resumes processes, also from memory images.
	Restorer *restore.Restorer
	// Git collects, compares, applies and rebases the work of sandboxes on repositories.
	Git *gitwork.Git
	// Commands runs commands in sandboxes.
	Commands *command.Runner
	// Files opens the live files of sandboxes.
	Files *livefiles.Opener
	// Histories answers queries about snapshots.
	Histories *history.Histories
	// Travel sends and receives proposals.
	Travel *travel.Travel
	// Grants lets requests of sandboxes carry secrets.
	Grants *grants.Grants

	mu     sync.Mutex
	boxes  map[timeline.SandboxID]*entry // the sandboxes used since Open
	making map[timeline.LayerID]bool     // layers without a record yet
	torn   map[timeline.SandboxID]error  // why adoptions of these sandboxes could not be undone

	// shape is held for writing by operations that remove layers, and for reading by those that read
	// layers without holding all sandboxes that use them.
	shape sync.RWMutex

	chooser chooser

	bg    *errgroup.Group
	bgCtx context.Context
	stop  context.CancelCauseFunc

	register *command.Register // the open commands
	mounts   *mounts
	disk     diskLimits
	indexes  indexes
	refs     *gitrefs.Refs
	trees    *worktree.Trees
	stacks   *stacks.Stacks
	masks    *masks.Masks
	cleaners *audit.Cleaners
	budgets  *audit.Budgets
	journals *audit.Journals
	programs *audit.Programs
}

// errClosed is the cause with which Close cancels background work.
var errClosed = errors.New("engine closed")

// withDefaults returns c with the defaults of what it does not have.
func (c Config) withDefaults() Config {
	if c.FS == nil {
		c.FS = vfs.OS()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Patience == 0 {
		c.Patience = time.Minute
	}
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MayGrant == nil {
		c.MayGrant = func(context.Context) error { return nil }
	}
	if c.Caller == nil {
		c.Caller = func(context.Context) string { return "" }
	}
	if c.HostPrint == nil {
		c.HostPrint = func() string { return "" }
	}
	if c.HostRoot == "" {
		c.HostRoot = "/"
	}
	return c
}

// Open makes an engine over a home, and completes or reverts operations that a crash interrupted. The caller closes
// the engine before the database.
func Open(ctx context.Context, c Config) (*Engine, error) {
	c = c.withDefaults()
	e := &Engine{
		Config: c, Records: audit.NewReader(c.Ledger, c.Witness, c.DB), boxes: map[timeline.SandboxID]*entry{},
		making: map[timeline.LayerID]bool{}, torn: map[timeline.SandboxID]error{},
		Feed: events.NewBus(c.Now, c.DB),
		Policies: policies.New(policies.Config{
			Records: c.DB, Home: c.Home, Homes: c.Homes, HostCopyKey: bases.HostCopyKey,
			CanLimitCPU: c.Boxes.CanLimitCPU, Now: c.Now, Log: c.Logger,
		}),

		chooser:  chooser{probe: c.ProbeHost, drivers: c.Drivers},
		register: command.NewRegister(),
	}
	e.cleaners, e.budgets = newCleaners(e), audit.NewBudgets(c.Ledger, c.Now)
	e.Book = audit.NewBook(audit.BookConfig{
		Ledger: c.Ledger, Store: c.DB, Cleaners: e.cleaners, Commands: e.register, PolicyNow: bookCore{e}.policyNow,
		NeverApplied: neverApplied(e), Home: c.Home, Now: c.Now, Logger: c.Logger,
	})
	e.journals = audit.NewJournals(audit.JournalsConfig{
		Book: e.Book, Budgets: e.budgets, Place: e.journalAt, FS: c.FS, Recorded: e.register.Denied,
		Cursor: func(id timeline.SandboxID) string { return filepath.Join(e.sandboxDir(id), journalPosition) },
	})
	e.programs = audit.NewPrograms(audit.ProgramsConfig{
		Book: e.Book, Budgets: e.budgets, Left: c.Boxes, Evidence: e.Policies.Evidence, Place: e.journalAt, RunDir: e.runDir,
	})
	e.stacks = stacks.New(c.DB, c.Layers.Dir)
	e.masks = masks.New(masksConfig(e))
	e.Upkeep = upkeep.New(upkeepConfig(e))
	e.Images = images.New(imagesConfig(e))
	e.Files = livefiles.New(filesCore{e})
	e.Histories = history.New(historyConfig(e))
	e.Restorer = newRestorer(e)
	e.Bases = bases.New(basesConfig(e))
	e.Lifetimes = lifetime.New(lifetimeConfig(e))
	e.Tournaments = tournament.New(tournamentConfig(e))
	e.Egress = newEgress(e)
	e.Grants = newGrants(e)
	e.Commands = command.New(commandConfig(e))
	e.refs = gitrefs.New(gitrefs.Config{
		Store: c.DB, Now: e.Now, Rand: c.Rand, Log: c.Logger,
		Open: func(ctx context.Context, dir string) (*repo.Repo, error) { return e.Repos.Open(ctx, dir) },
	})
	e.indexes = indexes{fs: c.FS, dir: e.sandboxDir, log: c.Logger}
	e.disk = diskLimits{drivers: c.Drivers, live: e.live, log: c.Logger}
	e.trees = worktree.New(worktreeConfig(e))
	e.mounts = newMounts(c.FS, func(id timeline.SandboxID) string { return filepath.Join(e.sandboxDir(id), "mounted") })
	e.Git = newGit(e)
	e.Travel = travel.New(travelConfig(e))
	if err := (recovery{e}).home(ctx); err != nil {
		return nil, fault.Wrap(err, "recover %s", c.Home)
	}
	bg, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	e.stop = stop
	e.bg, e.bgCtx = errgroup.WithContext(bg)
	err := recovery{e}.run(ctx)
	if err == nil {
		err = e.settleRewinds(ctx)
	}
	if err == nil {
		err = recovery{e}.dropTrials(ctx)
	}
	if err != nil {
		return nil, errors.Join(fault.Wrap(err, "recover %s", c.Home), e.Close()) //nolint:contextcheck // closing goes on when ctx has ended
	}
	e.bg.Go(func() error { e.Upkeep.Work(e.bgCtx); return nil })
	e.bg.Go(func() error { e.Lifetimes.ExpireAll(e.bgCtx); return nil })
	e.bg.Go(func() error { e.Lifetimes.StopAllIdle(e.bgCtx); return nil })
	e.bg.Go(func() error { e.Grants.Watch(e.bgCtx); return nil })
	e.bg.Go(func() error {
		if err := e.refs.Sweep(e.bgCtx); err != nil && e.bgCtx.Err() == nil {
			e.Logger.Warn("could not remove unused references in repositories; gc will remove them", "err", err)
		}
		return nil
	})
	e.Upkeep.Wake()
	return e, nil
}

// Close ends background work and waits for it. Live boxes continue to run. It does not close the audit
// log, which belongs to the caller.
func (e *Engine) Close() error {
	e.stop(errClosed)
	err := e.bg.Wait()
	if errors.Is(err, context.Canceled) || errors.Is(err, errClosed) {
		err = nil
	}
	if aerr := e.Book.Agree(context.WithoutCancel(e.bgCtx)); aerr != nil {
		e.Logger.Warn("could not store the ledger checkpoint; will verify again on next start", "err", aerr)
	}
	return err
}

// Busy reports whether a sandbox has a box or an operation in progress; if so, the daemon does not exit.
func (e *Engine) Busy() bool {
	for _, s := range e.known() {
		h := e.tryLock(s, "checking whether it is running")
		if h == nil {
			return true
		}
		live := e.liveBox(h) != nil || h.doubt != nil
		h.unlock(e)
		if live {
			return true
		}
	}
	return false
}

// Paths in the home.

// liveDir holds the generations of a sandbox, below its directory.
const liveDir = "live"

func (e *Engine) sandboxDir(id timeline.SandboxID) string {
	return filepath.Join(e.Home, "sandboxes", string(id))
}

func (e *Engine) runDir(id timeline.SandboxID) string {
	return filepath.Join(e.sandboxDir(id), "run")
}

// journalDir holds the journal of a sandbox, which its gate and keeper write.
func (e *Engine) journalDir(id timeline.SandboxID) string {
	return filepath.Join(e.sandboxDir(id), "journal")
}

// journalPosition is the file of a sandbox with the position up to which its journal has become records.
const journalPosition = "journal.told"

// watchJournal turns the journal of a box into records while the box lives.
func (e *Engine) watchJournal(id timeline.SandboxID, b Box, busy bool) {
	e.bg.Go(func() error {
		e.journals.Watch(e.bgCtx, id, b.Gone(), busy)
		return nil
	})
}

// journalAt returns the journal of a sandbox, with its key.
func (e *Engine) journalAt(id timeline.SandboxID) journal.Place {
	return journal.Place{Dir: e.journalDir(id), Key: e.DB.Derive("journal " + string(id)), FS: e.FS}
}

func (e *Engine) genDir(rec *meta.Sandbox) string {
	return filepath.Join(e.sandboxDir(rec.ID), liveDir, itoa(rec.Gen))
}

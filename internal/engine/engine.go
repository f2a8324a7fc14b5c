//go:build linux

// Package engine is what Coppice does: create, run, snapshot, rewind and fork
// sandboxes. It owns the order of things and the locks, and leaves bytes to
// layer, records to meta, presentation to rootfs and confinement to box, which
// it knows through interfaces declared here. It may be imported by daemon alone;
// the doors reach it through the interfaces that they declare.
//
// Locks are taken in the order of docs/design/locks.md, to which a test holds the code. No I/O is
// done under Engine.mu.
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

// BoxConfig is what a box needs to start.
type BoxConfig struct {
	ID     timeline.SandboxID
	Name   string
	RunDir string // holds the keeper's socket and log
	Spec   rootspec.Spec
	Tier   string
	User   string // root, me, or a name of the sandbox's own /etc/passwd
	Host   bool   // the base is the host itself
	Net    string
	Env    []string
	Limits wire.Limits
	Self   string // wire.SelfOff, SelfRead, SelfRewind
	DiskBy string // what holds it to Limits.Disk already; set where there is one
	Strong bool   // refuse to start where a wall or limit is less than it should be
	// Require names protections with which the sandbox has run: Start fails without them.
	Require []string
	// Known is what starts of this home have found out about the host: Start fails if the
	// host no longer provides what one of them had.
	Known  []meta.Finding
	Trace  bool // note the programs that are started
	Hidden int  // how many places of the base Spec does not show
	// Evidence says what of it is kept; of output, what the keeper holds until it is.
	Evidence policy.Evidence
	Access   rootspec.Access
	// Dirs are where commands begin that do not say: the first that is there.
	Dirs []string
	// Shared are directories of the host that are shown read-only at rootspec.SharedPath.
	Shared []string
	Tokens []DecoyToken // of Access.Decoys
	Stops  bool         // when one of these is touched, all processes are killed

	// JournalDir is where the keeper and the gate tell of decoys, of the network, and of what
	// is refused; "" in tier workspace. JournalKey is the key of
	// what is there.
	JournalDir string
	JournalKey []byte
	// Image is a directory with a memory image: processes go on from there, and nothing
	// passes the gate until Release. Init is the file with the program that is PID 1 in it; ""
	// is this one.
	Image string
	Init  string
	// In tier supervised: what it may use.
	Phases []Phase
	Asks   bool // people are asked about what the policies do not name
}

// Phase is a policy that holds until a time.
type Phase = policies.Phase

// DecoyToken is a token, and the path inside of the decoy that it is from.
type DecoyToken = egress.DecoyToken

// Boxes starts and finds boxes; see package box.
type Boxes interface {
	Start(ctx context.Context, c BoxConfig) (Box, Enforced, error)
	// Attach finds the box whose keeper listens in runDir; a NotFound fault
	// when none does.
	Attach(ctx context.Context, runDir string) (Box, error)
	// Kill kills the keeper of a run directory and all processes of its box, whether or not
	// the keeper answers. NotFound if there is none.
	Kill(ctx context.Context, runDir string) error
	// LeftPrograms gives the beginnings and ends of programs that nobody had kept when a
	// keeper ended that had been given that JournalKey, until ForgetPrograms. NotFound: there are none.
	LeftPrograms(runDir string, journalKey []byte) (wire.ProgramEvents, error)
	ForgetPrograms(runDir string) error
	// CanLimitCPU says why no box can be held to a share of the processors; nil where
	// one can.
	CanLimitCPU() error
	// Inherited returns those protections of a sandbox that a fork of another tier needs
	// too.
	Inherited(protections []string, from, to string) []string
	// Needs returns what a host must have for a protection.
	Needs(protection string) string
}

// Enforced is what a box really enforces.
type Enforced struct {
	Tier  string
	Items []wire.Enforcement
	// Protections are the Items that later starts need too.
	Protections []string
	// Found is what the start found out about the host.
	Found []meta.Finding
}

// Box is a live sandbox's keeper.
type Box interface {
	// Pause suspends every process until Resume, which may be called by a later daemon.
	// Commands are a Conflict meanwhile.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Paused reports whether it is.
	Paused(ctx context.Context) (bool, error)
	// Reseal gives a box that was started with an Image an identity of its own. seed is 32
	// fresh random bytes. Nothing is done after a step that failed, which the error names.
	Reseal(ctx context.Context, hostname string, seed []byte) ([]ResealStep, error)
	// Release opens the gate of a box that was started with an Image.
	Release(ctx context.Context) error
	// Exec runs a command; frames travel over the returned stream, which the
	// caller closes. In the last one, "alone" says that no process was left when
	// the command was reaped.
	Exec(ctx context.Context, req wire.ExecRequest) (io.ReadWriteCloser, error)
	// Freeze stops every process until thaw is called or the connection ends.
	Freeze(ctx context.Context) (f Frozen, err error)
	// Procs counts the processes that belong to the user.
	Procs(ctx context.Context) (int, error)
	// Stop ends all processes, after grace for those that heed SIGTERM, and
	// the keeper itself, and waits until its mounts are gone.
	Stop(ctx context.Context, grace time.Duration) error
	// Gone is closed when the keeper has ended.
	Gone() <-chan struct{}
	// Wait waits for the end of a command that was started with Keep. It can be
	// asked for until Forget.
	Wait(ctx context.Context, exec string) (Ended, error)
	// Forget says that the end of such a command is recorded.
	Forget(ctx context.Context, exec string) error
	// Execs lists the commands that run, and those that were started with Keep,
	// have ended and are not forgotten: they have an Exit.
	Execs(ctx context.Context) ([]wire.ExecInfo, error)
	// Signal sends a signal ("TERM") to a running command.
	Signal(ctx context.Context, exec, name string) error
	// Cancel ends a running command: SIGTERM, two seconds, SIGKILL.
	Cancel(ctx context.Context, exec string) error
	// Input gives a running command what r holds, and with eof the end of input.
	Input(ctx context.Context, exec string, r io.Reader, eof bool) error
	// Active waits until a process has run since the clock was since, 0 being
	// before everything, and gives the clock. Unavailable: the keeper has ended.
	Active(ctx context.Context, since uint64) (clock uint64, err error)
	// Ran waits as Active does, by a clock that Processes, Ports and their like leave
	// as it is.
	Ran(ctx context.Context, since uint64) (clock uint64, err error)

	Processes(ctx context.Context) (wire.ProcessesResult, error)
	// SignalProcess sends a signal to one process. NotFound: there is none, or it is
	// another one.
	SignalProcess(ctx context.Context, pid int, sig wire.ProcessSignal) error
	// Ports lists the TCP ports that processes listen on.
	Ports(ctx context.Context) (wire.PortsResult, error)
	// DialPort connects to one of them and to nothing else. NotFound: nothing
	// listens there.
	DialPort(ctx context.Context, port int) (net.Conn, error)
	// SetPolicy puts policies in force, each until its end; connections that are not
	// allowed any more are cut. In tier supervised; Unsupported else.
	SetPolicy(ctx context.Context, phases []Phase) error
	// Net tells what is open and went through, in tier supervised.
	Net(ctx context.Context) (wire.NetNow, error)
	// Programs gives the beginnings and ends of programs after one of them, as soon as
	// there are any; the caller has put down those up to kept. Unsupported: they are not told.
	Programs(ctx context.Context, after, kept uint64) (wire.ProgramEvents, error)
	// ProgramsNow is the same, and does not wait.
	ProgramsNow(ctx context.Context, after, kept uint64) (wire.ProgramEvents, error)
	// OpenRoot gives the root as processes see it, without stopping anybody. The box
	// does not end, being idle, before that is closed.
	OpenRoot(ctx context.Context) (*InsideRoot, error)
}

// InsideRoot is a live root as the processes of its box see it.
type InsideRoot struct {
	// Dir has the box's own mounts; nil when it is no mount, but the plain tree of
	// its driver.
	Dir  *os.File
	User boxfs.User // who commands run as
	// Unseen are directories whose files lie in memory of the box, and not in Dir.
	Unseen []string
	Close  func() error // lets go of all but Dir
}

// Frozen is a box whose processes stand still.
type Frozen interface {
	Procs() int
	// Suspects can be written through shared mappings.
	Suspects() layer.Suspects
	// Root gives the live root; the caller closes it.
	Root(ctx context.Context) (*LiveRoot, error)
	// Programs are those that were started since the freeze before, oldest first,
	// with BoxConfig.Trace.
	Programs() []wire.Program
	Thaw() error
	// Drop thaws without waiting, even while Thaw waits.
	Drop()
	// Save writes what processes have in memory into a directory that is there and empty, and
	// gives the program that is PID 1 among them, which the caller closes.
	Save(ctx context.Context, dir string) (init *os.File, err error)
}

// ResealStep is something that was done to make a box one of its own.
type ResealStep = restore.Step

// LiveRoot is what a frozen box tells about its root.
type LiveRoot struct {
	// Dir is the root as processes see it; nil when it is no mount, but the plain
	// tree of its driver.
	Dir    *os.File
	Owners layer.Owners // how stored ids appear in Dir
	// The files that processes have mapped, by inode and by path; AnyMapped says
	// that it may be any.
	Inodes    []uint64
	Paths     []string
	AnyMapped bool
}

// Close lets go of the root.
func (r *LiveRoot) Close() error {
	if r.Dir == nil {
		return nil
	}
	return r.Dir.Close()
}

// HostQuestion says what of the host is asked for.
type HostQuestion struct {
	Quick  bool // only what choosing a tier and a driver needs
	GVisor bool // tier gvisor, too, which is tried by starting a sandbox
}

// Config is what an Engine is made of.
type Config struct {
	Home    string // COPPICE_HOME, absolute
	FS      vfs.FS // what the engine itself writes below Home through; nil: the real one
	DB      *meta.DB
	Layers  *layer.Store
	Drivers map[string]rootfs.Driver
	Boxes   Boxes
	Memory  *memory.Store // what processes have in memory is kept in; nil: it is not
	// MemoryFacts are what has to be the same where a memory image is taken and resumed, and
	// BuildFacts what has to be besides for one that was kept without its init.
	MemoryFacts func() (map[string]string, error)
	BuildFacts  func() (map[string]string, error)
	// Understands reports whether an image of another protocol, a fact of its memory, can be
	// resumed nevertheless.
	Understands func(protocol string) bool
	Repos       Repos          // the git repositories of the host
	UID         uint32         // of whoever the engine runs for, on the host
	GID         uint32         // of the same
	Ledger      *ledger.Ledger // what is done is recorded in
	Witness     *ledger.Witness
	Logger      *slog.Logger
	// Caller names who asks for something, for the ledger; nil: nobody is named.
	Caller func(context.Context) string
	Now    func() time.Time // nil: time.Now
	Rand   io.Reader        // nil: crypto/rand
	BootID string           // of the running kernel
	Root   bool             // the daemon is real root
	Homes  []string         // what ~ stands for in a policy
	// Patience is how long a call waits for another one that works on the same
	// sandbox before it is a Conflict that names the other; 0: a minute.
	Patience time.Duration
	// ProbeHost says what the host can do, found by trying.
	ProbeHost func(ctx context.Context, q HostQuestion) (wire.ProbeReport, error)
	// HostImport says what a host-copy imports; see package rootfs.
	HostImport func() (layer.ImportOptions, error)
	// HostRoot is the directory that a host-copy imports; empty: /.
	HostRoot string
	// HostPrint is a cheap fingerprint of the host's system directories, to
	// notice that they changed below a history.
	HostPrint func() string
}

// Engine carries out the operations. Make one with Open; all methods are safe
// for concurrent use.
type Engine struct {
	Config

	// Records answers what is recorded. It is not changed after Open.
	Records *audit.Reader
	// Book writes the ledger. It is not changed after Open.
	Book *audit.Book
	// Feed tells what happens in sandboxes. It is not changed after Open.
	Feed *events.Bus
	// Policies answers what the policy of a sandbox says. It is not changed after Open.
	Policies *policies.Policies
	// Upkeep seals, merges and frees layers. It is not changed after Open.
	Upkeep *upkeep.Upkeep
	// Images keeps what processes have in memory. It is not changed after Open.
	Images *images.Images
	// Bases finds and makes what sandboxes begin on. It is not changed after Open.
	Bases *bases.Bases
	// Egress controls what goes between sandboxes and the network. It is not changed after Open.
	Egress *egress.Control
	// Lifetimes end sandboxes that have expired or are idle. It is not changed after Open.
	Lifetimes *lifetime.Lifetimes
	// Tournaments tries commands in forks. It is not changed after Open.
	Tournaments *tournament.Tournaments
	// Restorer lets processes stand still and go on, also from memory images. It is not changed after Open.
	Restorer *restore.Restorer
	// Git takes out, compares, applies and rebases what sandboxes did in repositories. It is not changed
	// after Open.
	Git *gitwork.Git
	// Commands runs commands in sandboxes. It is not changed after Open.
	Commands *command.Runner
	// Files opens the live files of sandboxes. It is not changed after Open.
	Files *livefiles.Opener
	// Histories answer questions about snapshots. It is not changed after Open.
	Histories *history.Histories
	// Travel sends and receives proposals. It is not changed after Open.
	Travel *travel.Travel

	mu     sync.Mutex
	boxes  map[timeline.SandboxID]*entry // the sandboxes used since Open
	making map[timeline.LayerID]bool     // layers that have no record yet
	torn   map[timeline.SandboxID]error  // why their adoptions could not be undone

	// shape is held for writing by whatever takes layers away, and for reading
	// by whatever reads layers without holding all sandboxes that use them.
	shape sync.RWMutex

	chooser chooser

	bg    *errgroup.Group
	bgCtx context.Context
	stop  context.CancelCauseFunc

	register *command.Register // of the commands that are open
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

// errClosed is the cause that Close cancels background work with.
var errClosed = errors.New("engine closed")

// Open makes an engine over a home and finishes or takes back whatever a crash
// left half done. Close it before the database.
func Open(ctx context.Context, c Config) (*Engine, error) {
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
	if c.Caller == nil {
		c.Caller = func(context.Context) string { return "" }
	}
	if c.HostPrint == nil {
		c.HostPrint = func() string { return "" }
	}
	if c.HostRoot == "" {
		c.HostRoot = "/"
	}
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
		Cursor: func(id timeline.SandboxID) string { return filepath.Join(e.sandboxDir(id), journalTold) },
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
	if err != nil {
		return nil, errors.Join(fault.Wrap(err, "recover %s", c.Home), e.Close()) //nolint:contextcheck // closing goes on when ctx has ended
	}
	e.bg.Go(func() error { e.Upkeep.Work(e.bgCtx); return nil })
	e.bg.Go(func() error { e.Lifetimes.ExpireAll(e.bgCtx); return nil })
	e.bg.Go(func() error { e.Lifetimes.StopAllIdle(e.bgCtx); return nil })
	e.bg.Go(func() error {
		if err := e.refs.Sweep(e.bgCtx); err != nil && e.bgCtx.Err() == nil {
			e.Logger.Warn("could not remove unused references in repositories; gc will remove them", "err", err)
		}
		return nil
	})
	e.Upkeep.Wake()
	return e, nil
}

// Close ends background work and waits for it. Live boxes run on, and the ledger is the
// caller's to close.
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

// Busy reports whether a sandbox has a box, or somebody works on one: the daemon
// stays meanwhile.
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

// The places of the home.

// liveDir holds the generations of a sandbox, below its directory.
const liveDir = "live"

func (e *Engine) sandboxDir(id timeline.SandboxID) string {
	return filepath.Join(e.Home, "sandboxes", string(id))
}

func (e *Engine) runDir(id timeline.SandboxID) string {
	return filepath.Join(e.sandboxDir(id), "run")
}

// journalDir holds what was decided about the network of a sandbox, and what else gate and
// keeper tell.
func (e *Engine) journalDir(id timeline.SandboxID) string {
	return filepath.Join(e.sandboxDir(id), "journal")
}

// journalTold is the file of a sandbox that says how far its journal has become records.
const journalTold = "journal.told"

// watchJournal records what the journal of a box says while it lives.
func (e *Engine) watchJournal(id timeline.SandboxID, b Box, busy bool) {
	e.bg.Go(func() error {
		e.journals.Watch(e.bgCtx, id, b.Gone(), busy)
		return nil
	})
}

// journalAt is journalDir, with the key of what is there.
func (e *Engine) journalAt(id timeline.SandboxID) journal.Place {
	return journal.Place{Dir: e.journalDir(id), Key: e.DB.Derive("journal " + string(id)), FS: e.FS}
}

func (e *Engine) genDir(rec *meta.Sandbox) string {
	return filepath.Join(e.sandboxDir(rec.ID), liveDir, itoa(rec.Gen))
}

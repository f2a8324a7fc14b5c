//go:build linux

package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/boxfs"
	"github.com/coppice-dev/coppice/internal/command"
	"github.com/coppice-dev/coppice/internal/egress"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/history"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/lifetime"
	"github.com/coppice-dev/coppice/internal/memory"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/restore"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/tournament"
	"github.com/coppice-dev/coppice/internal/undo"
	"github.com/coppice-dev/coppice/internal/upkeep"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// fakeBoxes confine nothing: Go code does what their commands say, on the plain tree of driver copy. So the engine's
// history can be tested anywhere.
type fakeBoxes struct {
	mu    sync.Mutex
	boxes map[string]*fakeBox // by run directory

	started  []BoxConfig                 // the configurations that boxes were started with
	ports    map[int]bool                // open ports of boxes that start
	deaf     int                         // how many dials boxes that start refuse
	noShare  bool                        // CPU limits are unsupported
	rekeyErr error                       // error of Rekey of boxes that start
	user     uint32                      // users of boxes that start
	hooked   []wire.ExecRequest          // the hooks that were run
	hookEnd  wire.Exit                   // the exit of each hook
	hookGo   chan struct{}               // hooks wait until it is closed; nil: they do not
	holds    []string                    // protections of boxes that start
	found    []meta.Finding              // findings of boxes that start
	begun    func(context.Context) error // called at the beginning of a start; nil: nothing
	unheard  error                       // the error of attaching to a box
}

type fakeBox struct {
	boxes  *fakeBoxes
	hangs  atomic.Bool   // Attach and Paused do not return meanwhile
	mute   chan struct{} // Execs waits until it is closed; nil: it does not
	thawed atomic.Int32
	stuck  atomic.Bool // Thaw fails
	root   string
	gone   chan struct{}
	once   sync.Once

	alone    bool           // Ended.Alone of commands
	suspects layer.Suspects // reported by freezes
	onRoot   func()         // called by Root of a freeze
	held     func() bool    // the answer of Held; nil: true
	programs []wire.Program
	freezes  int
	hanging  atomic.Int32 // commands that run until the box stops
	procs    int          // how many processes a freeze reports
	user     uint32       // that commands run as, if the test runs as root
	rooted   *LiveRoot    // returned by Root; nil: nothing is mapped

	mu     sync.Mutex
	kept   map[string]chan struct{} // guarded by mu; supervised commands, closed when they end
	starts int                      // guarded by mu; of supervised commands
	asked  map[string]wire.Capture  // guarded by mu; by command, as Execs reports it
	blind  atomic.Int32             // how many calls of Wait do not find the command

	stirred chan struct{} // a token: a process has run since the last call of Active; nil: no process ever does
	watched atomic.Int32  // how many calls of Active wait
	crowded atomic.Bool   // two waited at a time
	looked  atomic.Int32  // how many calls of Active there were

	paused   atomic.Bool
	rootless atomic.Bool  // OpenRoot fails as if the keeper were exiting
	released atomic.Int32 // how often the gate was opened
	rekeyed  []string     // guarded by mu; the host names that Rekey was called with
	rekeyErr error        // guarded by mu; error of the second step of Rekey

	starved  atomic.Bool   // init does not answer
	starving chan struct{} // receives a token when a caller waits for it

	stopping atomic.Bool // commands that exit are reported as stopped
	refusing atomic.Bool // commands are refused

	ports     map[int]bool  // guarded by mu; open ports
	morePorts chan struct{} // guarded by mu; receives a token when ports has changed
	dials     int           // guarded by mu
	deaf      int           // guarded by mu; how many dials are refused

	set     [][]Phase      // guarded by mu; the arguments of SetPolicy
	secrets []plan.Secrets // guarded by mu; the arguments of SetSecrets
	setErr  func() error   // guarded by mu; returns the error of SetPolicy

	asking []wire.NetQuestion // guarded by mu; pending requests
}

func (f *fakeBoxes) Start(ctx context.Context, c BoxConfig) (Box, Enforced, error) {
	if f.begun != nil {
		if err := f.begun(ctx); err != nil {
			return nil, Enforced{}, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = append(f.started, c)
	b := &fakeBox{root: c.Spec.Bind, gone: make(chan struct{}), morePorts: make(chan struct{}, 1),
		starving: make(chan struct{}, 1), deaf: f.deaf, rekeyErr: f.rekeyErr, user: f.user, boxes: f}
	if f.ports != nil {
		b.ports = maps.Clone(f.ports)
		b.morePorts <- struct{}{}
	}
	if b.root == "" {
		b.root = c.Spec.Overlays[0].Upper
	}
	f.boxes[c.RunDir] = b
	return b, Enforced{Tier: c.Tier, Protections: slices.Clone(f.holds), Found: slices.Clone(f.found)}, nil
}

func (f *fakeBoxes) LeftPrograms(dir string, _ []byte) (wire.ProgramEvents, error) {
	return wire.ProgramEvents{}, fault.New(fault.NotFound, "no programs were left in %s", dir)
}
func (f *fakeBoxes) ForgetPrograms(string) error { return nil }
func (f *fakeBoxes) Attach(ctx context.Context, dir string) (Box, error) {
	f.mu.Lock()
	b := f.boxes[dir]
	f.mu.Unlock()
	if b != nil {
		if err := b.hung(ctx); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if b != nil {
		select {
		case <-b.gone:
		default:
			if f.unheard != nil {
				return nil, f.unheard
			}
			return b, nil
		}
	}
	return nil, fault.New(fault.NotFound, "no keeper listens in %s", dir)
}

func (f *fakeBoxes) Inherited(protections []string, from, to string) []string {
	if from != to {
		return slices.DeleteFunc(slices.Clone(protections), func(name string) bool { return name == "freeze" })
	}
	return protections
}

func (f *fakeBoxes) Needs(protection string) string { return "what gives " + protection }

func (f *fakeBoxes) Kill(ctx context.Context, dir string) error {
	f.mu.Lock()
	b := f.boxes[dir]
	f.unheard = nil
	f.mu.Unlock()
	if b == nil {
		return fault.New(fault.NotFound, "no keeper listens in %s", dir)
	}
	return b.Stop(ctx, 0)
}

func (f *fakeBoxes) CanLimitCPU() error {
	if f.noShare {
		return fault.New(fault.Unsupported, "no cpu controller").WithHint("leave cpus out")
	}
	return nil
}

func (b *fakeBox) Gone() <-chan struct{}        { return b.gone }
func (b *fakeBox) Pause(context.Context) error  { b.paused.Store(true); return nil }
func (b *fakeBox) Resume(context.Context) error { b.paused.Store(false); return nil }
func (b *fakeBox) Paused(ctx context.Context) (bool, error) {
	if err := b.hung(ctx); err != nil {
		return false, err
	}
	return b.paused.Load(), nil
}

// hung waits as long as the box hangs.
func (b *fakeBox) hung(ctx context.Context) error {
	for b.hangs.Load() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

func (b *fakeBox) Rekey(_ context.Context, hostname string, seed []byte) ([]RekeyStep, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rekeyed = append(b.rekeyed, hostname)
	if b.rekeyErr != nil {
		return []RekeyStep{{Name: "hostname", Detail: hostname}, {Name: "machine-id", Err: b.rekeyErr.Error()}}, b.rekeyErr
	}
	return []RekeyStep{{Name: "hostname", Detail: hostname}, {Name: "random"}}, nil
}

func (b *fakeBox) Release(context.Context) error { b.released.Add(1); return nil }
func (b *fakeBox) Procs(context.Context) (int, error) {
	if b.starved.Load() {
		return 0, fault.New(fault.Timeout, "init did not answer")
	}
	return int(b.hanging.Load()), nil
}
func (b *fakeBox) Freeze(ctx context.Context) (Frozen, error) {
	b.freezes++
	if b.starved.Load() {
		select {
		case b.starving <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return nil, fault.Wrap(context.Cause(ctx), "wait for the keeper")
	}
	return fakeFrozen{b}, nil
}
func (b *fakeBox) Wait(ctx context.Context, exec string) (Ended, error) {
	b.mu.Lock()
	end := b.kept[exec]
	b.mu.Unlock()
	if end == nil || b.blind.Add(-1) >= 0 {
		return Ended{}, fault.New(fault.NotFound, "no command %s", exec)
	}
	select {
	case <-end:
		return Ended{Stopped: b.stopping.Load(), Alone: b.alone}, nil
	case <-b.gone:
		return Ended{}, fault.New(fault.Unavailable, "the monitor has exited")
	case <-ctx.Done():
		return Ended{}, ctx.Err()
	}
}

// keep starts a supervised command, or attaches to one.
func (b *fakeBox) keep(req wire.ExecRequest) (io.ReadWriteCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out bytes.Buffer
	s := stream{&out, io.Discard}
	switch id := req.ID + req.Attach; {
	case req.Attach == "" && b.kept[id] != nil:
		return s, wire.WriteJSON(&out, wire.FrameFailed, wire.Error{Kind: string(fault.Exists), Message: "there is one"})
	case req.Attach == "":
		if b.kept == nil {
			b.kept = map[string]chan struct{}{}
		}
		b.kept[id] = make(chan struct{})
		if b.asked == nil {
			b.asked = map[string]wire.Capture{}
		}
		b.asked[id] = req.Capture
		if len(req.Cmd) > 0 && req.Cmd[0] == "over" { // before its start is reported
			close(b.kept[id])
		}
		b.starts++
		if len(req.Cmd) > 0 && req.Cmd[0] == "missing" {
			return s, wire.WriteJSON(&out, wire.FrameExit, Ended{Exit: wire.Exit{Code: 127}})
		}
		fallthrough
	default:
		return s, wire.WriteJSON(&out, wire.FrameStarted, wire.Started{Exec: id, PID: 2})
	}
}
func (b *fakeBox) Forget(context.Context, string) error { return nil }
func (b *fakeBox) Active(ctx context.Context, since uint64) (uint64, error) {
	b.looked.Add(1)
	if b.stirred == nil {
		return 0, fault.New(fault.Unavailable, "nothing runs here")
	}
	if since == 0 {
		return 1, nil
	}
	if b.watched.Add(1) > 1 {
		b.crowded.Store(true)
	}
	defer b.watched.Add(-1)
	select {
	case <-b.stirred:
		return since + 1, nil
	case <-b.gone:
		return 0, fault.New(fault.Unavailable, "the monitor has exited")
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
func (b *fakeBox) Ran(ctx context.Context, since uint64) (uint64, error) {
	if b.ports == nil {
		return 0, fault.New(fault.Unavailable, "nothing runs here")
	}
	b.mu.Lock()
	more := b.morePorts
	b.mu.Unlock()
	select {
	case <-more:
		return since + 1, nil
	case <-b.gone:
		return 0, fault.New(fault.Unavailable, "the monitor has exited")
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
func (b *fakeBox) Ports(context.Context) (wire.PortsResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var r wire.PortsResult
	for p := range b.ports {
		r.Ports = append(r.Ports, wire.Port{Port: p, Address: "127.0.0.1", Program: "server"})
	}
	return r, nil
}
func (b *fakeBox) DialPort(_ context.Context, port int) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dials++
	if !b.ports[port] || b.dials <= b.deaf {
		return nil, fault.New(fault.NotFound, "nothing listens on port %d", port)
	}
	a, _ := net.Pipe()
	return a, nil
}
func (b *fakeBox) Processes(context.Context) (wire.ProcessesResult, error) {
	return wire.ProcessesResult{Processes: []wire.Process{{PID: 2}}}, nil
}
func (b *fakeBox) SignalProcess(_ context.Context, pid int, sig wire.ProcessSignal) error {
	if pid != 2 || sig.Name != "TERM" {
		return fault.New(fault.NotFound, "no process %d for %q", pid, sig.Name)
	}
	return nil
}
func (b *fakeBox) SetSecrets(_ context.Context, s plan.Secrets) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.secrets = append(b.secrets, s)
	return nil
}
func (b *fakeBox) SetPolicy(_ context.Context, phases []Phase) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set = append(b.set, phases)
	if b.setErr != nil {
		return b.setErr()
	}
	return nil
}
func (b *fakeBox) Programs(context.Context, uint64, uint64) (wire.ProgramEvents, error) {
	return wire.ProgramEvents{}, fault.New(fault.Unsupported, "no programs are told of")
}
func (b *fakeBox) ProgramsNow(ctx context.Context, after, kept uint64) (wire.ProgramEvents, error) {
	return b.Programs(ctx, after, kept)
}
func (b *fakeBox) Net(context.Context) (wire.NetNow, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return wire.NetNow{Conns: 1, Asking: b.asking}, nil
}
func (b *fakeBox) OpenRoot(context.Context) (*InsideRoot, error) {
	if b.rootless.Load() {
		return nil, fault.New(fault.Unavailable, "the monitor does not answer")
	}
	u, g := uint32(os.Getuid()), uint32(os.Getgid())
	if u == 0 {
		u = b.user
	}
	return &InsideRoot{
		User: boxfs.User{UID: u, GID: g, UIDs: []boxfs.IDMap{{Inside: u, Outside: u, Size: 1}},
			GIDs: []boxfs.IDMap{{Inside: g, Outside: g, Size: 1}}},
		Close: func() error { return nil }}, nil
}
func (b *fakeBox) Stop(context.Context, time.Duration) error {
	b.once.Do(func() { close(b.gone) })
	return nil
}

func (b *fakeBox) Signal(context.Context, string, string) error { return nil }
func (b *fakeBox) Cancel(context.Context, string) error         { return nil }
func (b *fakeBox) Input(_ context.Context, _ string, r io.Reader, _ bool) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// Execs lists the commands that were started with Keep, sorted by id.
func (b *fakeBox) Execs(ctx context.Context) ([]wire.ExecInfo, error) {
	if b.mute != nil {
		select {
		case <-b.mute:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []wire.ExecInfo
	for _, id := range slices.Sorted(maps.Keys(b.kept)) {
		out = append(out, wire.ExecInfo{ID: id, Cmd: []string{"kept", id}, PID: 2, Kept: true, Capture: b.asked[id]})
	}
	return out, nil
}

type fakeFrozen struct{ b *fakeBox }

func (f fakeFrozen) Procs() int               { return f.b.procs }
func (f fakeFrozen) Suspects() layer.Suspects { return f.b.suspects }
func (f fakeFrozen) Programs() []wire.Program { return f.b.programs }
func (fakeFrozen) Drop()                      {}
func (f fakeFrozen) Held(context.Context) (bool, error) {
	return f.b.held == nil || f.b.held(), nil
}
func (f fakeFrozen) Thaw() error {
	f.b.thawed.Add(1)
	if f.b.stuck.Load() {
		return fault.New(fault.Unavailable, "the monitor has exited")
	}
	return nil
}

// Save writes an image of two pages, one of which contains the number of freezes. Its init is a file of a few bytes
// that is in no directory.
func (f fakeFrozen) Save(_ context.Context, dir string) (memory.Programs, error) {
	pages := make([]byte, 2*4096)
	copy(pages, fmt.Sprintf("freeze %d", f.b.freezes))
	for name, data := range map[string][]byte{"checkpoint.img": []byte("kernel"), "pages_meta.img": []byte("meta"),
		"pages.img": pages} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return memory.Programs{}, err
		}
	}
	init, err := os.CreateTemp(filepath.Dir(dir), "init")
	if err != nil {
		return memory.Programs{}, err
	}
	_, err = init.WriteString(fakeInit)
	return memory.Programs{Init: init}, errors.Join(err, os.Remove(init.Name()))
}

// fakeInit is the content of the program that is PID 1 in all boxes.
const fakeInit = "the program"

func (f fakeFrozen) Root(context.Context) (*LiveRoot, error) {
	if f.b.onRoot != nil {
		f.b.onRoot()
	}
	if f.b.rooted != nil {
		return f.b.rooted, nil
	}
	return new(LiveRoot), nil
}

// Exec does one of: true; write PATH TEXT; rm PATH; mv FROM TO; mkdir PATH.
func (b *fakeBox) Exec(_ context.Context, req wire.ExecRequest) (io.ReadWriteCloser, error) {
	if b.refusing.Load() {
		var out bytes.Buffer
		return stream{&out, io.Discard},
			wire.WriteJSON(&out, wire.FrameFailed, wire.Error{Kind: string(fault.Invalid), Message: "no such user"})
	}
	if len(req.Cmd) == len(tournament.Shell("")) && slices.Equal(req.Cmd[:3], tournament.Shell("")[:3]) {
		return b.shell(req)
	}
	if req.Keep || req.Attach != "" {
		return b.keep(req)
	}
	if path.Dir(req.Cmd[0]) == restore.HooksDir {
		return b.boxes.hook(req)
	}
	at := func(i int) string { return filepath.Join(b.root, req.Cmd[i]) }
	var err error
	switch req.Cmd[0] {
	case "true":
	case "print":
		return b.print(req)
	case "write":
		err = errors.Join(os.MkdirAll(filepath.Dir(at(1)), 0o755), os.WriteFile(at(1), []byte(req.Cmd[2]), 0o644))
	case "rm":
		err = os.RemoveAll(at(1))
	case "mv":
		err = os.Rename(at(1), at(2))
	case "mkdir":
		err = os.MkdirAll(at(1), 0o755)
	default:
		err = fmt.Errorf("no such command %q", req.Cmd[0])
	}
	x := Ended{Alone: b.alone}
	if err != nil {
		x.Exit = wire.Exit{Code: 1, Message: err.Error()}
	}
	var out bytes.Buffer
	if err := wire.WriteJSON(&out, wire.FrameStarted, wire.Started{Exec: "e1", PID: 2}); err != nil {
		return nil, err
	}
	return stream{&out, io.Discard}, wire.WriteJSON(&out, wire.FrameExit, x)
}

// hook runs a hook, in any box.
func (f *fakeBoxes) hook(req wire.ExecRequest) (io.ReadWriteCloser, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hooked = append(f.hooked, req)
	r, w := io.Pipe()
	go func(end wire.Exit, goOn chan struct{}) {
		err := wire.WriteJSON(w, wire.FrameStarted, wire.Started{Exec: req.ID, PID: 2})
		if goOn != nil {
			<-goOn
		}
		_ = w.CloseWithError(errors.Join(err, wire.WriteJSON(w, wire.FrameExit, Ended{Exit: end})))
	}(f.hookEnd, f.hookGo)
	return stream{r, io.Discard}, nil
}

// print writes its argument, and reports all of it as recorded output.
func (b *fakeBox) print(req wire.ExecRequest) (io.ReadWriteCloser, error) {
	var out bytes.Buffer
	text := []byte(req.Cmd[1])
	err := errors.Join(wire.WriteJSON(&out, wire.FrameStarted, wire.Started{Exec: req.ID, PID: 2}),
		wire.WriteFrame(&out, wire.FrameStdout, text))
	if len(text) > 0 {
		for _, p := range (wire.Recorded{Stream: wire.FrameStdout, Total: int64(len(text)), Head: text}).Payloads() {
			err = errors.Join(err, wire.WriteFrame(&out, wire.FrameRecorded, p))
		}
	}
	return stream{&out, io.Discard}, errors.Join(err, wire.WriteJSON(&out, wire.FrameExit, Ended{Env: req.Env}))
}

type stream struct {
	io.Reader
	io.Writer
}

func (stream) Close() error { return nil }

// home is an engine on a directory. It can be closed and opened again.
type home struct {
	t      testing.TB
	dir    string
	boxes  *fakeBoxes
	boot   string
	now    time.Time
	fs     vfs.FS           // for layers
	clock  func() time.Time // nil: the real one
	bare   bool             // the host does not support tier supervised
	flat   bool             // the host can confine nothing
	book   vfs.FS           // for the ledger
	disk   vfs.FS           // for everything else; nil: the real one
	repos  Repos            // nil: none can be opened
	kernel string           // fact of memory images
	build  string           // fact of memory images without their init
	speaks int              // protocol version; older ones except 0 are understood
	driver string
	// release resumes the background; nil unless it is held.
	release func()
	*Engine
	*audit.Reader           // of the engine
	*events.Bus             // of the engine
	*policies.Policies      // of the engine
	*upkeep.Upkeep          // of the engine
	*egress.Control         // of the engine
	*lifetime.Lifetimes     // of the engine
	*tournament.Tournaments // of the engine
	*command.Runner         // of the engine
	*history.Histories      // of the engine
	*restore.Restorer       // of the engine
}

// time returns the current time of the engine.
func (h *home) time() time.Time {
	if h.clock != nil {
		return h.clock()
	}
	return time.Now()
}

func newHome(t testing.TB) *home { return newHomeOn(t, vfs.OS()) }

// newHomeWithFaultyLedger makes a home, and returns it with the file system of its ledger, which can be made to fail.
func newHomeWithFaultyLedger(t testing.TB) (*home, *vfs.Faulty) {
	disk := &vfs.Faulty{FS: unflushed{vfs.OS()}}
	h := newHome(t)
	h.close()
	h.book = disk
	h.open()
	return h, disk
}

func newHomeOn(t testing.TB, files vfs.FS) *home {
	dir, err := os.MkdirTemp("", "engine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error { return os.Chmod(p, 0o700) })
		os.RemoveAll(dir)
	})
	h := &home{t: t, dir: dir, boxes: &fakeBoxes{boxes: map[string]*fakeBox{}}, boot: "boot-1", now: time.Now(), fs: files,
		book: unflushed{vfs.OS()}}
	h.open()
	t.Cleanup(h.close)
	return h
}

func (h *home) open() {
	h.t.Helper()
	if err := h.tryOpen(); err != nil {
		h.t.Fatal(err)
	}
}

// tryOpen is open for a case where it may fail. If it fails, nothing remains open.
func (h *home) tryOpen() (err error) {
	ctx := context.Background()
	disk := h.disk
	if disk == nil {
		disk = vfs.OS()
	}
	var undone undo.Stack
	defer undone.Run(&err)
	db, err := meta.OpenOn(ctx, disk, filepath.Join(h.dir, "coppice.db"))
	if err != nil {
		return err
	}
	undone.Push(db.Close)
	layers, err := layer.Open(ctx, h.fs, filepath.Join(h.dir, "layers"))
	if err != nil {
		return err
	}
	undone.Push(layers.Close)
	drv, err := rootfs.New(cmp.Or(h.driver, "copy"),
		rootfs.Deps{Home: h.dir, Root: true, Materialise: func(ctx context.Context, st rootspec.Stack, dst string) error {
			return layers.Materialise(ctx, layers.View(st), dst)
		}})
	if err != nil {
		return err
	}
	images, err := memory.Open(ctx, filepath.Join(h.dir, "memory"), memory.Options{FS: disk})
	if err != nil {
		return err
	}
	undone.Push(images.Close)
	book, _, err := ledger.Open(filepath.Join(h.dir, "ledger"), ledger.Options{FS: h.book})
	if err != nil {
		return err
	}
	undone.Push(book.Close)
	e, err := Open(ctx, Config{
		Home: h.dir, FS: disk, DB: db, Layers: layers, Ledger: book, Witness: ledger.NewWitness(h.dir, h.fs, h.clock),
		Boxes: h.boxes, BootID: h.boot, Now: h.time, Homes: []string{"/home/me"}, Repos: h.repos,
		Memory: images, MemoryFacts: func() (map[string]string, error) {
			return map[string]string{"gvisor": "v" + h.kernel, "protocol": strconv.Itoa(h.speaks)}, nil
		},
		Understands: func(p string) bool { n, err := strconv.Atoi(p); return err == nil && n > 0 && n <= h.speaks },
		BuildFacts:  func() (map[string]string, error) { return map[string]string{"build": "b" + h.build}, nil },
		Drivers:     map[string]rootfs.Driver{"copy": drv},
		ProbeHost: func(context.Context, HostQuestion) (wire.ProbeReport, error) {
			if h.flat {
				lack := wire.ProbeItem{Group: "tiers", Name: "process", Detail: "needs user-namespaces", Remedy: "unmask"}
				return wire.ProbeReport{Driver: "copy", Items: []wire.ProbeItem{lack,
					{Group: "features", Name: "landlock", OK: true}}}, nil
			}
			return wire.ProbeReport{Tier: "process", Driver: "copy", Items: []wire.ProbeItem{
				{Group: "tiers", Name: "supervised", OK: !h.bare, Detail: "needs a link", Remedy: "modprobe veth"},
				{Group: "tiers", Name: "process", OK: true}}}, nil
		},
	})
	if err != nil {
		return err
	}
	undone.Release()
	h.Engine, h.Reader, h.Bus, h.Policies, h.Upkeep = e, e.Records, e.Feed, e.Policies, e.Upkeep
	h.Control, h.Lifetimes, h.Tournaments, h.Runner = e.Egress, e.Lifetimes, e.Tournaments, e.Commands
	h.Histories, h.Restorer = e.Histories, e.Restorer
	return nil
}

func (h *home) close() {
	if h.Engine == nil {
		return
	}
	if err := h.Close(); err != nil {
		h.t.Error(err)
	}
	if err := errors.Join(h.Layers.Close(), h.Memory.Close(), h.Ledger.Close(), h.DB.Close()); err != nil {
		h.t.Error(err)
	}
	h.Engine, h.Reader, h.Bus, h.Policies, h.Upkeep = nil, nil, nil, nil, nil
	h.Control, h.Runner = nil, nil
}

// unflushed is a file system that leaves flushing to the kernel. It is enough for tests of what survives the death of
// a process.
type unflushed struct{ vfs.FS }

func (unflushed) Sync(int) error   { return nil }
func (unflushed) SyncFS(int) error { return nil }

// run runs a command, and fails the test if it cannot be run.
func (h *home) run(name string, cmd ...string) wire.Exit {
	h.t.Helper()
	x, err := h.Exec(context.Background(), name, wire.ExecRequest{Cmd: cmd}, stream{strings.NewReader(""), io.Discard})
	if err != nil {
		h.t.Fatalf("%q: %v", cmd, err)
	}
	return x
}

// box returns the live box of a sandbox, which is started if necessary.
func (h *home) box(name string) *fakeBox {
	h.t.Helper()
	h.run(name, "true")
	rec, err := h.DB.Sandbox(context.Background(), name)
	if err != nil {
		h.t.Fatal(err)
	}
	h.boxes.mu.Lock()
	defer h.boxes.mu.Unlock()
	return h.boxes.boxes[h.runDir(rec.ID)]
}

// tree reads the live root of a sandbox. It maps paths to contents; directories end in /.
func (h *home) tree(name string) map[string]string {
	h.t.Helper()
	return readTree(h.t, h.box(name).root)
}

func readTree(t testing.TB, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		if d.IsDir() {
			out[rel+"/"] = ""
			return nil
		}
		b, err := os.ReadFile(p)
		out[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

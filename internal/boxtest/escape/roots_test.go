//go:build linux && (amd64 || arm64)

package escape_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/boxtest/escape"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

var (
	rootsFor  = flag.Duration("roots.for", time.Second, "how long TestRandomRoots generates root file systems")
	rootsSeed = flag.Uint64("roots.seed", 0, "where TestRandomRoots begins; 0 is random, and logged")
	rootsAll  = flag.Bool("roots.all", false, "TestHostileRoots tries each form at each place in each setting")
)

// Bounds that detect a hang or excessive use of memory. The memory is several times what a keeper and an init need with
// the race detector.
const (
	rootsPatience = 30 * time.Second
	rootsMemory   = 512 << 20
)

// canary is a directory of the host that no sandbox may read or change. Its mode gives all users access, so that ids do
// not hide a way to reach it.
type canary struct {
	dir    string
	words  []string // words that its secret contains
	watch  int      // an inotify instance that reports every open in it
	before map[string]string
}

func newCanary(t testing.TB) *canary {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "escape-canary-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	word := fmt.Sprintf("secret-%016x%016x", rand.Uint64(), rand.Uint64())
	// The secret looks like a certificate: code that copies only certificates must not copy it either.
	coded := base64.StdEncoding.EncodeToString([]byte(word))
	secret := word + "\n-----BEGIN CERTIFICATE-----\n" + coded + "\n-----END CERTIFICATE-----\n"
	c := &canary{dir: dir, words: []string{word, coded}}
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	must(os.WriteFile(filepath.Join(dir, "secret"), []byte(secret), 0o644))
	must(os.WriteFile(filepath.Join(dir, "precious"), []byte("precious\n"), 0o666))
	must(os.Mkdir(filepath.Join(dir, "empty"), 0o777))
	must(os.Mkdir(filepath.Join(dir, "closed"), 0o700)) // with shifted ids, access must be denied
	for name, mode := range map[string]os.FileMode{"": 0o777, "precious": 0o666, "empty": 0o777} {
		must(os.Chmod(filepath.Join(dir, name), mode))
	}
	c.before = c.state(t)
	c.watch, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(err)
	t.Cleanup(func() { unix.Close(c.watch) })
	// No close events: a process that another test forks has the same descriptors until it executes its program.
	const seen = unix.IN_OPEN | unix.IN_ACCESS | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_CREATE |
		unix.IN_DELETE | unix.IN_MOVE
	for _, name := range []string{"", "empty", "closed"} {
		_, err := unix.InotifyAddWatch(c.watch, filepath.Join(dir, name), seen)
		must(err)
	}
	return c
}

// state returns everything that can be observed of the canary.
func (c *canary) state(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(c.dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		all[p] = fmt.Sprintf("mode %o, owner %d:%d, size %d, links %d, %v, %v", st.Mode, st.Uid, st.Gid, st.Size, st.Nlink,
			st.Mtim, st.Ctim)
		if d.Type().IsRegular() {
			b, err := os.ReadFile(p)
			all[p] += fmt.Sprintf(", %q, %v", b, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// unharmed fails the test if any of it was opened or changed.
func (c *canary) unharmed(t testing.TB) {
	t.Helper()
	buf := make([]byte, 64<<10)
	n, err := unix.Read(c.watch, buf)
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	for b := buf[:max(n, 0)]; len(b) >= unix.SizeofInotifyEvent; {
		mask, size := binary.NativeEndian.Uint32(b[4:]), binary.NativeEndian.Uint32(b[12:])
		name := bytes.TrimRight(b[unix.SizeofInotifyEvent:][:size], "\x00")
		t.Errorf("the host's canary %q was reached: inotify event %#x", name, mask)
		b = b[unix.SizeofInotifyEvent+size:]
	}
	after := c.state(t)
	for p, was := range c.before {
		if after[p] != was {
			t.Errorf("the host's %s was changed:\n%s\nwas\n%s", p, after[p], was)
		}
	}
	for p := range after {
		if c.before[p] == "" {
			t.Errorf("the host's %s was created", p)
		}
	}
}

// quiet fails the test if a text contains the secret.
func (c *canary) quiet(t testing.TB, what, text string) {
	t.Helper()
	for _, w := range c.words {
		if strings.Contains(text, w) {
			t.Errorf("%s contains the host's secret: %s", what, text)
		}
	}
}

// setting is a way to start a sandbox on a root.
type setting struct {
	name, tier, net, user string
	inspects              bool // rules are about requests: the gate's authority is mounted over the trust stores
	bound                 bool // the root is a plain directory, as with drivers copy and btrfs
	access                bool // the policy has mounts, honeytokens and read-only places
}

func settings() []setting {
	other := otherUser()
	return []setting{
		{"process", plan.TierProcess, plan.NetOff, plan.UserRoot, false, false, true},
		{"process-host", plan.TierProcess, plan.NetHost, plan.UserRoot, false, false, false},
		{"supervised", plan.TierSupervised, plan.NetRules, plan.UserRoot, true, false, false},
		{"copy-host", plan.TierProcess, plan.NetHost, plan.UserRoot, false, true, false},
		{"copy-supervised", plan.TierSupervised, plan.NetRules, plan.UserRoot, true, true, true},
		{other + "-supervised", plan.TierSupervised, plan.NetRules, other, true, false, false},
	}
}

// tools returns a directory in at with the attacker and its shared libraries. All sandboxes of a test share the files,
// each through its own links.
func tools(t testing.TB, at string) string {
	t.Helper()
	dir, err := os.MkdirTemp(at, "escape-tools-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	files := map[string]string{"/tools/" + escape.Argv0: "/proc/self/exe"}
	libraries, _ := exec.Command("ldd", "/proc/self/exe").Output() // it fails for a static binary
	for word := range strings.FieldsSeq(string(libraries)) {
		if strings.HasPrefix(word, "/") {
			files[word] = word
		}
	}
	for name, from := range files {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(dir+name), 0o755)
		}
		if err == nil {
			err = os.WriteFile(dir+name, text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// trial is one sandbox on a hostile root.
type trial struct {
	setting
	tools  string
	dir    string
	config plan.Config
	out    *canary
	root   escape.Root   // the hostile entries
	was    plan.Enforced // what is enforced on a root that is not hostile
}

var rootIDs atomic.Uint64

// newTrial makes the root beside the tools, without hostile entries yet.
func newTrial(t testing.TB, s setting, tools string) *trial {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(tools), "escape-root-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeAll(t, dir) })
	x := &trial{setting: s, tools: tools, dir: dir, out: newCanary(t)}
	if err := makeImage(filepath.Join(dir, "image")); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"run", "run/self", "journal", "upper", "work", "shown", "shared"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	x.furnish(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	c := plan.Config{ID: fmt.Sprintf("roots-%d-%d", os.Getpid(), rootIDs.Add(1)), Name: "roots", RunDir: at("run"),
		Journal: at("journal"),
		Tier:    s.tier, Net: s.net, User: s.user, Caller: caller(t), IdleAfter: -1, Self: true, Trace: true,
		Shared: []string{at("shared")}, Dirs: []string{"/work"}}
	if s.tier == plan.TierContainer {
		c.Runtime = programtest.Runc()
	}
	if c.Gated() {
		rules := "version: 1\nnetwork: {allow: [{host: a.example}]}"
		if s.inspects {
			rules = "version: 1\nnetwork: {allow: [{host: a.example, methods: [GET]}]}"
		}
		c.Phases = []plan.Phase{boxtest.Phase(t, time.Time{}, rules)}
	}
	c.Spec = rootspec.Spec{Bind: at("image")}
	if !s.bound {
		c.Spec = rootspec.Spec{
			Overlays: []rootspec.Overlay{{Target: "/", Lowers: []string{at("image")}, Upper: at("upper"), Work: at("work")}}}
	}
	c.Spec.Hide = []string{"/srv/hidden"}
	if s.access {
		c.Access.ReadOnly = []rootspec.Place{{Said: "/srv/kept", At: []string{"/srv/kept"}}}
		c.Access.Mounts = []rootspec.HostMount{{From: at("shown"), To: "/srv/mount"}}
		c.Access.Decoys = []rootspec.Decoy{
			{At: "/srv/decoy", Text: []byte("decoy\n"), Mode: 0o644, ModTime: time.Unix(1e9, 0)}}
	}
	x.config = c
	return x
}

// makeImage makes the directory of an image: on a btrfs a subvolume, like driver btrfs.
func makeImage(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(dir), &st); err != nil {
		return err
	}
	if st.Type != unix.BTRFS_SUPER_MAGIC {
		return os.Mkdir(dir, 0o755)
	}
	if out, err := exec.Command("btrfs", "-q", "subvolume", "create", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("make a subvolume: %w: %s", err, out)
	}
	return nil
}

// kept is the content of the files in the policy's read-only places and mounts.
const kept = "kept\n"

// furnish adds the files of a usual system to the image.
func (x *trial) furnish(t testing.TB) {
	t.Helper()
	image := filepath.Join(x.dir, "image")
	if err := os.WriteFile(filepath.Join(x.dir, "shown/file"), []byte(kept), 0o666); err != nil {
		t.Fatal(err)
	}
	dirs := []string{"usr", "etc/ssl/certs", "proc", "dev", "sys", "run", "tmp", "root", "work", "srv/mount", "srv/kept",
		"srv/hidden", "var"}
	for _, d := range dirs {
		if err := os.MkdirAll(filepath.Join(image, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{
		"etc/passwd":                        "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/work:/bin/sh\n",
		"etc/group":                         "root:x:0:\n",
		"etc/resolv.conf":                   "nameserver 192.0.2.1\n",
		"etc/machine-id":                    "00000000000000000000000000000000\n",
		"etc/ssl/certs/ca-certificates.crt": "# none\n",
		"srv/decoy":                         "",
		"srv/kept/file":                     kept,
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(image, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../run", filepath.Join(image, "var/run")); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(x.tools, func(p string, d os.DirEntry, err error) error {
		to := filepath.Join(image, strings.TrimPrefix(p, x.tools))
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.MkdirAll(to, 0o755)
		}
		return linked(p, to)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// linked makes a hard link to a file. In a subvolume, into which no hard link can lead, it makes a copy that shares the
// blocks.
func linked(from, to string) error {
	if err := os.Link(from, to); !errors.Is(err, unix.EXDEV) {
		return err
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	c, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	return errors.Join(unix.IoctlFileClone(int(c.Fd()), int(f.Fd())), c.Close())
}

// caller returns the user of this process on the host.
func caller(t testing.TB) plan.Caller {
	t.Helper()
	v := os.Getenv(realID)
	if v == "" {
		return plan.Caller{Root: true}
	}
	var c plan.Caller
	if _, err := fmt.Sscanf(v, "%d:%d", &c.UID, &c.GID); err != nil {
		t.Fatal(err)
	}
	if u, err := user.LookupId(strconv.Itoa(int(c.UID))); err == nil {
		c.Name = u.Username
	}
	return c
}

// removeAll removes a tree that may contain directories of mode 000.
func removeAll(t testing.TB, dir string) {
	t.Helper()
	_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(p, 0o700)
		}
		return nil
	})
	if err := os.RemoveAll(dir); err != nil {
		t.Errorf("clean up: %v", err)
	}
}

// start starts the box. It returns nil if the start was refused in the required way: with a typed error, and in time.
func (x *trial) start(t testing.TB) *box.Box {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rootsPatience)
	defer cancel()
	greedy := x.guard(cancel)
	began := time.Now()
	b, e, err := box.Start(ctx, programtest.Programs(), x.config)
	if why := greedy(); why != "" {
		t.Error(why)
	}
	log, _ := os.ReadFile(filepath.Join(x.config.RunDir, "keeper.log"))
	x.out.quiet(t, "keeper.log", string(log))
	if err != nil {
		x.out.quiet(t, "the error", err.Error()+fault.HintOf(err))
		if x.tier == plan.TierGvisor && fault.Is(err, fault.Unsupported) && x.was.Tier == "" {
			t.Skipf("needs gvisor: %v", err)
		}
		switch {
		case ctx.Err() != nil:
			t.Errorf("the start did not end: %v after %v\n%s", err, time.Since(began), log)
		case fault.Is(err, fault.Internal):
			t.Errorf("the start failed with an untyped error: %v\n%s", err, log)
		case x.was.Tier == "":
			t.Fatalf("start: %v\n%s", err, log)
		}
		t.Logf("refused: %s: %v", fault.KindOf(err), err)
		return nil
	}
	t.Cleanup(func() { b.Close() })
	for _, was := range x.was.Items {
		if is := e.State(was.Name); was.State == plan.On && is != plan.On {
			t.Errorf("%s is %q and was on: a protection was dropped\n%s", was.Name, is, log)
		}
	}
	if told, err := json.Marshal(e); err == nil {
		x.out.quiet(t, "what is enforced", string(told))
	}
	return b
}

// guard watches the memory of the box's processes. If one uses too much, it kills them, and the returned function
// reports that.
func (x *trial) guard(cancel func()) (why func() string) {
	var done sync.WaitGroup
	var told string
	end := make(chan struct{})
	done.Go(func() {
		for {
			select {
			case <-end:
				return
			case <-time.After(500 * time.Millisecond):
			}
			for pid, size := range x.processes() {
				if size > rootsMemory {
					told = fmt.Sprintf("process %d of the set-up took %d MiB", pid, size>>20)
					_ = unix.Kill(pid, unix.SIGKILL)
					cancel()
				}
			}
		}
	})
	return func() string {
		close(end)
		done.Wait()
		return told
	}
}

// processes returns the processes that have the box's ID as an argument, with their memory.
func (x *trial) processes() map[int]int64 {
	all := map[int]int64{}
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		args, _ := os.ReadFile(name)
		if !bytes.Contains(args, []byte("\x00"+x.config.ID+"\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		statm, err2 := os.ReadFile(filepath.Join(filepath.Dir(name), "statm"))
		fields := strings.Fields(string(statm))
		if err != nil || err2 != nil || len(fields) < 2 {
			continue
		}
		pages, _ := strconv.ParseInt(fields[1], 10, 64)
		all[pid] = pages * int64(os.Getpagesize())
	}
	return all
}

// stop stops the box, and fails the test if that takes too long.
func (x *trial) stop(t testing.TB, b *box.Box) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), rootsPatience)
	defer cancel()
	if err := b.Stop(ctx, 0); err != nil {
		t.Errorf("stop: %v", err)
	}
	select { // otherwise thousands of zombies remain
	case <-b.Gone():
	case <-ctx.Done():
		t.Error("the keeper did not exit")
	}
}

// inspect makes the attacker check the protections from inside, and then make lay in the root.
func (x *trial) inspect(t testing.TB, b *box.Box, lay escape.Root) {
	t.Helper()
	in := escape.Inspection{Words: x.out.words, Out: x.out.dir, Own: x.tier == plan.TierGvisor, Lay: lay}
	in.IDs = x.config.Caller.Root && !in.Own // gVisor reports its own ids
	if len(x.config.Access.ReadOnly) > 0 {
		in.Kept = x.kept()
	}
	arg, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), rootsPatience)
	defer cancel()
	s, err := b.Exec(ctx,
		wire.ExecRequest{Cmd: []string{"/tools/" + escape.Argv0, escape.InspectWord, string(arg)}, Dir: "/"})
	if err != nil {
		t.Errorf("exec: %v", err)
		return
	}
	defer s.Close()
	_ = s.SetDeadline(time.Now().Add(rootsPatience))
	r := boxtest.Collect(s)
	if r.Err != nil || r.Failed != nil || r.Exit.Code != escape.Refused || !strings.Contains(r.Stdout, escape.Held) {
		t.Errorf("inside: %v %+v, exit %+v\n%s%s", r.Err, r.Failed, r.Exit, r.Stdout, r.Stderr)
	}
	if r.Stderr != "" || strings.Contains(r.Stdout, "left out") {
		t.Logf("inside: %s%s", r.Stdout, r.Stderr)
	}
}

// kept lists the files that the policy protects, except those that the root replaces.
func (x *trial) kept() []escape.Kept {
	all := []escape.Kept{{Path: "/srv/kept/file", Text: kept}, {Path: "/srv/mount/file", Text: kept},
		{Path: "/srv/decoy", Text: "decoy\n"}}
	return slices.DeleteFunc(all, func(k escape.Kept) bool {
		return slices.ContainsFunc(x.root, func(e escape.Entry) bool { return rootspec.Within(k.Path, e.Path) })
	})
}

// ofImage tries a root that comes with the image.
func (x *trial) ofImage(t testing.TB, r escape.Root) {
	t.Helper()
	x.root = r
	left, err := r.Lay(filepath.Join(x.dir, "image"), x.out.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range left {
		t.Logf("left out: %v", l)
	}
	if b := x.start(t); b != nil {
		x.inspect(t, b, nil)
		x.stop(t, b)
	}
	x.out.unharmed(t)
	if t.Failed() {
		t.Logf("setting %s, root:\n%v", x.name, r)
	}
}

// ofItself tries a root that the sandbox makes, as root, before it is started again. The sandbox makes it in a setting
// without mounts that would be in the way.
func (x *trial) ofItself(t testing.TB, r escape.Root) {
	t.Helper()
	x.root = r
	then, was := x.config, x.was
	x.config.Tier, x.config.Net, x.config.User, x.config.Phases = plan.TierProcess, plan.NetOff, plan.UserRoot, nil
	x.config.Access, x.config.Spec.Hide, x.was = rootspec.Access{}, nil, plan.Enforced{}
	b := x.start(t)
	x.inspect(t, b, r)
	x.stop(t, b)
	x.config, x.was = then, was
	if b := x.start(t); b != nil {
		x.inspect(t, b, nil)
		x.stop(t, b)
	}
	x.out.unharmed(t)
	if t.Failed() {
		t.Logf("setting %s, made from inside:\n%v", x.name, r)
	}
}

// TestHostileRoots starts images with one form at one place. It tries one in share pairs, each in one setting or, with
// -roots.all, each pair in each setting.
func TestHostileRoots(t *testing.T) {
	t.Parallel()
	hostileRoots(t, settings(), share)
}

// needsStatic skips a test whose attacker runs in a root without a loader. Builds with the race detector are not
// static; scripts/test runs these tests in a static build.
func needsStatic(t testing.TB) {
	t.Helper()
	if looptest.Race {
		t.Skip("needs plain-build: the attacker runs in a root with the static binary alone")
	}
}

// share is the number of pairs of a place and a form of which one is tried.
const share = 10

func hostileRoots(t *testing.T, all []setting, share int) {
	c := newCorpus(t, all)
	for p, place := range escape.Places {
		t.Run(strings.ReplaceAll(place.Path[1:], "/", "-"), func(t *testing.T) {
			t.Parallel()
			for f, form := range escape.Forms {
				if !*rootsAll && (p+f)%share != 0 {
					continue
				}
				for i, s := range c.settings {
					if !*rootsAll && i != (p+f/share)%len(c.settings) {
						continue
					}
					t.Run(s.name+"/"+strings.ReplaceAll(form.Kind+form.To, "/", "-"), func(t *testing.T) {
						c.trial(t, i).ofImage(t, escape.Root{form.At(place.Path)})
					})
				}
			}
		})
	}
}

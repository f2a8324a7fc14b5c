//go:build linux && (amd64 || arm64)

package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/seccomp"
)

// A world is a small sandbox. The launcher (the ordinary user, or root) starts the world (PID 1 of new namespaces,
// which mounts the overlay and serves notifications), which starts the actor (under the filter, runs one scenario). All
// three are this binary, distinguished by argv[0].
const (
	argLaunch = "notify-launch"
	argWorld  = "notify-world"
	argActor  = "notify-actor"
	argPlay   = "notify-play"
)

func TestMain(m *testing.M) {
	switch os.Args[0] {
	case argLaunch:
		os.Exit(launch())
	case argWorld:
		os.Exit(beWorld())
	case argActor:
		os.Exit(beActor())
	case argRefused:
		os.Exit(beRefused())
	case argInet:
		os.Exit(beInet())
	case argInetGo:
		os.Exit(beInetGo())
	case argInetConnect:
		os.Exit(beInetConnect())
	case argInetMessages:
		os.Exit(beInetMessages())
	case argPlay:
		os.Exit(bePlay())
	}
	os.Exit(m.Run())
}

// worldConfig is passed in argv[1].
type worldConfig struct {
	Dir      string // contains lower/, upper/, work/, m/
	UID      int    // uid of the user outside
	Inside   int    // the uid to which it is mapped; 0 with Range
	Range    bool   // 65536 ids are mapped (real root)
	Emulate  bool
	NoFilter bool
	Bare     bool   // the actor has no capabilities
	Scenario string // "" only recovers
	Break    int    // fail the promotion at this step
	Die      bool   // kill PID 1 there instead
}

func (c worldConfig) arg() string {
	b, _ := json.Marshal(c)
	return string(b)
}

func configFromArgs() worldConfig {
	var c worldConfig
	if err := json.Unmarshal([]byte(os.Args[1]), &c); err != nil {
		panic(err)
	}
	return c
}

func complain(format string, args ...any) int {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	return 1
}

func runChild(cmd *exec.Cmd) int {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, os.Stdout, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1)
	case err != nil:
		return complain("%s: %v", cmd.Args[0], err)
	}
	return 0
}

func launch() int {
	c := configFromArgs()
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{argWorld, c.arg()}}
	size := 1
	if c.Range {
		size = 65536
	}
	ids := []syscall.SysProcIDMap{{ContainerID: c.Inside, HostID: c.UID, Size: size}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: c.Range,
	}
	if c.Inside != 0 {
		for i := range uintptr(unix.CAP_LAST_CAP + 1) {
			cmd.SysProcAttr.AmbientCaps = append(cmd.SysProcAttr.AmbientCaps, i)
		}
	}
	return runChild(cmd)
}

// beWorld is the main function of PID 1.
func beWorld() int {
	c := configFromArgs()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return complain("private: %v", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return complain("proc: %v", err)
	}
	in := func(s string) string { return filepath.Join(c.Dir, s) }
	opts := fmt.Sprintf("userxattr,lowerdir=%s,upperdir=%s,workdir=%s", in("lower"), in("upper"), in("work"))
	if err := unix.Mount("overlay", in("m"), "overlay", 0, opts); err != nil {
		return complain("overlay: %v", err)
	}
	if err := os.Mkdir(in("m/tmpfs"), 0o755); err == nil {
		if err := unix.Mount("tmpfs", in("m/tmpfs"), "tmpfs", 0, ""); err != nil {
			return complain("tmpfs: %v", err)
		}
	}
	if left, err := Recover(); err != nil || len(left) > 0 {
		return complain("recover: %v, left %v", err, left)
	}
	if c.Scenario == inWorld {
		return bothWaysAgree(in("m"))
	}
	steps := 0
	hook := func() error {
		steps++
		switch {
		case steps != c.Break:
			return nil
		case c.Die:
			os.Exit(9) // the kernel kills all other processes
		}
		return unix.EIO
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return complain("socketpair: %v", err)
	}
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{argActor, c.arg()}, Dir: in("m"), Stdout: os.Stdout,
		Stderr: os.Stderr}
	cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(pair[1]), "pair")}
	if err := cmd.Start(); err != nil {
		return complain("actor: %v", err)
	}
	cmd.ExtraFiles[0].Close()
	served := make(chan error, 1)
	if c.NoFilter {
		served <- nil
	} else {
		l, err := receiveFD(pair[0])
		if err != nil {
			return complain("listener: %v", err)
		}
		go func() {
			served <- Serve(context.Background(), l,
				Options{Emulate: c.Emulate, Terminals: true, Freeze: freezeAll, hook: hook, Report: func(e Event) {
					fmt.Printf("event %s %s moved=%d bytes=%d err=%v\n", e.Kind, strings.TrimPrefix(e.Path, in("m")), e.Moved,
						e.Bytes, e.Err)
				}})
		}()
	}
	werr := cmd.Wait()
	if err := <-served; err != nil {
		return complain("serve: %v", err)
	}
	if c.Break > steps {
		fmt.Println("all steps were taken")
	}
	if werr != nil {
		return complain("scenario %s: %v", c.Scenario, werr)
	}
	return 0
}

// freezeAll stops every process of the pid namespace except this one, and waits until each thread is stopped, or waits
// for an answer or a vfork child.
func freezeAll() (func(), error) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		running := 0
		stats, _ := filepath.Glob("/proc/[0-9]*/task/*/stat")
		for _, p := range stats {
			b, _ := os.ReadFile(p)
			i := bytes.LastIndexByte(b, ')')
			if strings.HasPrefix(p, "/proc/1/") || i < 0 || len(b) < i+3 {
				continue
			}
			if strings.ContainsRune("TtZX", rune(b[i+2])) {
				continue
			}
			if b[i+2] == 'D' { // in the middle of a call, or waiting for an answer of this process?
				where, _ := os.ReadFile(strings.TrimSuffix(p, "stat") + "wchan")
				if bytes.Contains(where, []byte("seccomp")) || bytes.Contains(where, []byte("vfork")) {
					continue
				}
			}
			running++
			pid, _ := strconv.Atoi(strings.Split(p, "/")[2])
			if err := Halt(pid); err != nil {
				return nil, err
			}
		}
		if running == 0 {
			return func() { _ = unix.Kill(-1, unix.SIGCONT) }, nil
		}
	}
	_ = unix.Kill(-1, unix.SIGCONT)
	return nil, context.DeadlineExceeded
}

func sendFD(sock, fd int) error { return unix.Sendmsg(sock, []byte{0}, unix.UnixRights(fd), nil, 0) }

func receiveFD(sock int) (*os.File, error) {
	oob := make([]byte, 64)
	_, n, _, _, err := unix.Recvmsg(sock, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) == 0 {
		return nil, fmt.Errorf("no descriptor came: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "listener"), nil
}

// beActor makes the thread permanently unprivileged and executes this binary again, so that every thread of the
// scenario is unprivileged.
func beActor() int {
	runtime.LockOSThread()
	c := configFromArgs()
	if c.Bare {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
			return complain("ambient: %v", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return complain("no_new_privs: %v", err)
	}
	return complain("exec: %v", unix.Exec("/proc/self/exe", []string{argPlay, os.Args[1]}, os.Environ()))
}

// bePlay runs one scenario under the filter.
func bePlay() int {
	c := configFromArgs()
	if !c.NoFilter {
		prog := seccomp.Notifying(seccomp.NotifyOptions{Emulate: c.Emulate, Promote: true, Terminals: true})
		l, err := seccomp.Install(prog, seccomp.AllThreads|seccomp.Listener)
		if err != nil {
			return complain("%v", err)
		}
		if err := sendFD(3, l); err != nil {
			return complain("send: %v", err)
		}
		unix.Close(l)
	}
	unix.Close(3)
	return play(c.Scenario)
}

// worldKinds returns the kinds of worlds. Each test runs in all that the machine and the user allow.
func worldKinds(t *testing.T) map[string]worldConfig {
	t.Helper()
	kinds := map[string]worldConfig{}
	uid := os.Getuid()
	if uid == 0 {
		kinds["root"] = worldConfig{UID: 0, Range: true}
		u, err := user.Lookup("coppiceuser")
		if err != nil {
			t.Log("skip: feature ordinary-user: no user coppiceuser")
			return kinds
		}
		uid, _ = strconv.Atoi(u.Uid)
	}
	kinds["user-as-root"] = worldConfig{UID: uid, Inside: 0}
	kinds["user-as-me"] = worldConfig{UID: uid, Inside: uid, Bare: true}
	return kinds
}

// prepare creates the directories of a world; fill writes the lower layer.
func prepare(t testing.TB, c *worldConfig, fill func(lower string)) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "notify") // not t.TempDir: other users cannot enter its parent
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // paths exceed PATH_MAX, so package os cannot remove them
		if out, err := exec.Command("sh", "-c", `chmod -R u+rwx "$0" 2>/dev/null; rm -rf "$0"`, dir).
			CombinedOutput(); err != nil {
			t.Errorf("clean up: %v %.300s", err, out)
		}
	})
	c.Dir = dir
	for _, d := range []string{"lower", "upper", "work", "m"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	fill(filepath.Join(dir, "lower"))
	if os.Getuid() != c.UID {
		if out, err := exec.Command("chown", "-hR", fmt.Sprintf("%d:%d", c.UID, c.UID), dir).CombinedOutput(); err != nil {
			t.Fatalf("chown: %v %.300s", err, out)
		}
	}
}

// start returns the command that runs c's world.
func (c worldConfig) start() *exec.Cmd {
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{argLaunch, c.arg()}, Dir: "/"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if c.UID != os.Getuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(c.UID), Gid: uint32(c.UID)}
	}
	return cmd
}

// run runs c's world and returns its output.
func (c worldConfig) run(t testing.TB) string {
	t.Helper()
	out, err := c.start().CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// userNamespaces skips the test if no user namespace can be created.
func userNamespaces(t *testing.T) {
	t.Helper()
	skipOnce.Do(func() {
		cmd := exec.Command("/bin/true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
		skipErr = cmd.Run()
	})
	if skipErr != nil {
		t.Skipf("needs user-namespaces: %v", skipErr)
	}
}

var (
	skipOnce sync.Once
	skipErr  error
)

// inWorld is a scenario that PID 1 runs itself.
const inWorld = "both ways agree"

// bothWaysAgree compares the two ways to detect a pure upper directory.
func bothWaysAgree(root string) int {
	p := func(s string) string { return filepath.Join(root, s) }
	for _, err := range []error{
		os.Mkdir(p("new"), 0o755), os.WriteFile(p("new/f"), nil, 0o600),
		os.WriteFile(p("d/sub/new"), nil, 0o600),            // merged
		os.RemoveAll(p("full")), os.Mkdir(p("full"), 0o755), // opaque
	} {
		if err != nil {
			return complain("%v", err)
		}
	}
	want := map[string]bool{"new": true, "full": true, "d": false, "d/sub": false, "other": false, "void": false}
	for name, pure := range want {
		dir, base := filepath.Split(p(name))
		parent, err := openat(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return complain("%v", err)
		}
		e := &end{parent: parent, base: base, node: -1}
		if err := e.look(); err != nil {
			return complain("%v", err)
		}
		before := tree(root)
		if got := pureUpper(e); got != pure {
			return complain("by its handle, %s is pure: %v", name, got)
		}
		if got := triedToMove(e); got != pure {
			return complain("by a try, %s is pure: %v", name, got)
		}
		if after := tree(root); after != before {
			return complain("the tries left something behind:\n%s\nwant\n%s", after, before)
		}
		e.close()
	}
	return 0
}

//go:build linux

package rootfstest

import (
	"bytes"
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
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Step is code of a test that runs in the root that is mounted at the directory root. arg is the argument of InRoot,
// as JSON. InRoot returns what the step prints to out.
type Step func(root string, arg []byte, out io.Writer) error

// MountOptions configure InRoot. The zero value mounts the spec unchanged.
type MountOptions struct {
	// Shift mounts the root with an ID map (rootspec.Options.IDMapFD), and runs the step as uid 0 of that user
	// namespace: 0 is ShiftedID outside.
	Shift bool
}

// ShiftedID is the ID outside that ID 0 of a shifted root is mapped to.
const ShiftedID = 200000

const (
	childName = "coppice-rootfstest"
	userEnv   = "COPPICE_TEST_AS_USER"
)

type order struct {
	Spec  rootspec.Spec
	At    string
	Step  string
	Arg   json.RawMessage
	Shift bool
}

// Main must be called by TestMain. It runs the tests, or in a child the requested step.
func Main(m *testing.M, steps map[string]Step) {
	if os.Args[0] == childName {
		os.Exit(child(steps))
	}
	os.Exit(m.Run())
}

func child(steps map[string]Step) int {
	if err := obey(steps, os.NewFile(3, "order")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func obey(steps map[string]Step, r io.Reader) error {
	var o order
	if err := json.NewDecoder(r).Decode(&o); err != nil {
		return err
	}
	step, ok := steps[o.Step]
	if !ok {
		return fmt.Errorf("unknown step %q", o.Step)
	}
	if len(os.Args) > 1 && os.Args[1] == "inner" {
		return step("/proc/self/fd/4", o.Arg, os.Stdout)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if !o.Shift {
		if err := rootspec.Mount(o.Spec, o.At, rootspec.Options{}); err != nil {
			return err
		}
		return step(o.At, o.Arg, os.Stdout)
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: ShiftedID, Size: 65536}}
	ns, err := rootspec.UserNamespace(ids, ids)
	if err != nil {
		return err
	}
	if err := rootspec.Mount(o.Spec, o.At, rootspec.Options{IDMapFD: int(ns.Fd())}); err != nil {
		return err
	}
	c, err := command(o, "inner")
	if err != nil {
		return err
	}
	// In the namespace, the parent directories of the root have another owner.
	root, err := os.Open(o.At)
	if err != nil {
		return err
	}
	c.ExtraFiles = append(c.ExtraFiles, root)
	c.Stdout = os.Stdout
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: ids, GidMappings: ids,
		GidMappingsEnableSetgroups: true,
		Credential:                 &syscall.Credential{Uid: 0, Gid: 0},
	}
	return runChild(c)
}

func command(o order, args ...string) (*exec.Cmd, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	go func() {
		_, _ = w.Write(text)
		_ = w.Close()
	}()
	return &exec.Cmd{Path: "/proc/self/exe", Args: append([]string{childName}, args...), ExtraFiles: []*os.File{r}}, nil
}

func runChild(c *exec.Cmd) error {
	var stderr bytes.Buffer
	c.Stderr = &stderr
	err := c.Run()
	_ = c.ExtraFiles[0].Close()
	if err != nil {
		return errors.New(strings.TrimSpace(stderr.String() + "\n" + err.Error()))
	}
	return nil
}

// InRoot mounts the spec in a child process with its own mount namespace, and runs the named step there, as real root
// or as uid 0 of a user namespace. It returns what the step printed, and the error of mounting or of the step.
// TestMain must call Main.
func InRoot(t testing.TB, s rootspec.Spec, opts MountOptions, step string, arg any) (string, error) {
	t.Helper()
	raw, err := json.Marshal(arg)
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := command(order{Spec: s, At: at, Step: step, Arg: raw, Shift: opts.Shift})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c.Stdout = &out
	// The child does not outlive the test. The parent in the sense of PR_SET_PDEATHSIG is a thread (prctl(2)).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err = runChild(c)
	return out.String(), err
}

// Privileged reports whether the caller may mount: real root, or within AsUser.
func Privileged() bool { return os.Geteuid() == 0 }

// IsUser reports whether the test runs within AsUser: uid 0 of a user namespace.
func IsUser() bool { return os.Getenv(userEnv) != "" }

// NeedsMount skips the test if the caller cannot mount at all.
func NeedsMount(t testing.TB) {
	t.Helper()
	if !Privileged() {
		t.Skip("needs real-root: to mount")
	}
}

// AsUser runs the test again in a child as an unprivileged user that is uid 0 of a user namespace with one ID, like
// the daemon of an unprivileged user. It returns true in that child, which then continues with the test. For real
// root the user is coppiceuser.
func AsUser(t *testing.T) bool {
	t.Helper()
	if IsUser() {
		return true
	}
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		u, err := user.Lookup("coppiceuser")
		if err != nil {
			t.Skip("needs ordinary-user: to be one (make it: useradd coppiceuser)")
		}
		uid, _ = strconv.Atoi(u.Uid)
		gid, _ = strconv.Atoi(u.Gid)
	}
	tmp, err := os.MkdirTemp("/tmp", "coppice-user-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	if err := os.Chown(tmp, uid, gid); err != nil {
		t.Fatal(err)
	}
	c := &exec.Cmd{
		Path: "/proc/self/exe",
		Args: []string{os.Args[0], "-test.run=^" + t.Name() + "$", "-test.v=" + strconv.FormatBool(testing.Verbose())},
		Env:  append(os.Environ(), userEnv+"=1", "TMPDIR="+tmp, "HOME="+tmp),
		Dir:  "/",
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}},
			Credential:  &syscall.Credential{NoSetGroups: true},
		},
	}
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Skipf("needs user-namespaces: %v", err)
	}
	if err != nil {
		t.Errorf("as an ordinary user: %v\n%s", err, out)
	} else {
		t.Logf("as an ordinary user:\n%s", out)
	}
	return false
}

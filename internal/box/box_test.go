//go:build linux && (amd64 || arm64)

package box_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// realID is set in the environment of a child that runs as another user. The suite runs as the user who started it.
// Real root then runs it again as an ordinary user, who runs it as uid 0 of a user namespace, like the daemon.
// COPPICE_TEST_ROOT_ONLY or COPPICE_TEST_USER_ONLY selects one of the two runs.
const realID = "COPPICE_TEST_REAL_ID"

func TestMain(m *testing.M) {
	if strings.HasPrefix(filepath.Base(os.Args[0]), boxtest.CallerArgv0) {
		os.Exit(boxtest.CallerMain(os.Args, os.Stdout))
	}
	if os.Args[0] == boxtest.StarterArgv0 {
		os.Exit(boxtest.StarterMain(os.Stdin, os.Stdout))
	}
	if code, ok := disturbs(os.Args); ok {
		os.Exit(code)
	}
	if os.Getenv(realID) == "" && os.Getuid() != 0 {
		os.Exit(again(&syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}, realID+"="+strconv.Itoa(os.Getuid())+":"+strconv.Itoa(os.Getgid())))
	}
	// As under nohup(1): a signal that is ignored here is not ignored in a sandbox.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT)
	os.Exit(programtest.Run(suite{m}))
}

// suite runs the tests of this process and then those of an ordinary user.
type suite struct{ *testing.M }

func (s suite) Run() (code int) {
	root := os.Getuid() == 0 && os.Getenv(realID) == ""
	if !root || os.Getenv("COPPICE_TEST_USER_ONLY") == "" {
		code = s.M.Run()
	}
	if root && os.Getenv("COPPICE_TEST_ROOT_ONLY") == "" {
		fmt.Println("--- as an ordinary user")
		code |= again(&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1001, Gid: 1001}})
	}
	return code
}

func again(attr *syscall.SysProcAttr, env ...string) int {
	args := slices.DeleteFunc(slices.Clone(os.Args), func(a string) bool { // files that the user cannot write
		return strings.HasPrefix(a, "-test.testlogfile") || strings.HasPrefix(a, "-test.coverprofile") ||
			strings.HasPrefix(a, "-test.gocoverdir")
	})
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: args, Dir: "/", Env: append(os.Environ(), env...), Stdout: os.Stdout,
		Stderr: os.Stderr, SysProcAttr: attr}
	if err := cmd.Run(); err != nil {
		fmt.Println("run again:", err)
		return 1
	}
	return 0
}

func caller() plan.Caller {
	if s := os.Getenv(realID); s != "" {
		var c plan.Caller
		fmt.Sscanf(s, "%d:%d", &c.UID, &c.GID)
		return c
	}
	return plan.Caller{Root: true}
}

func config(t testing.TB) plan.Config {
	t.Helper()
	dir, err := os.MkdirTemp(cmp.Or(os.Getenv("COPPICE_TEST_DIR"), "/var/tmp"), "box")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := plan.Config{ID: "test", Name: "test", Tier: plan.TierProcess, RunDir: filepath.Join(dir, "run"), Caller: caller(),
		User: plan.UserRoot}
	if err := os.Mkdir(c.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, top := range []string{"/usr", "/etc", "/root", "/home"} {
		o := rootspec.Overlay{Target: top, Lowers: []string{top}, Upper: dir + top + "/upper", Work: dir + top + "/work"}
		for _, d := range []string{o.Upper, o.Work} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		c.Spec.Overlays = append(c.Spec.Overlays, o)
	}
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		if to, err := os.Readlink("/" + l); err == nil {
			c.Spec.Skeleton = append(c.Spec.Skeleton, rootspec.Entry{Path: "/" + l, Link: to})
		}
	}
	return c
}

func workspace(t testing.TB) plan.Config {
	c := config(t)
	c.Tier, c.User = plan.TierWorkspace, ""
	c.Spec = rootspec.Spec{Bind: filepath.Join(filepath.Dir(c.RunDir), "work")}
	if err := os.Mkdir(c.Spec.Bind, 0o755); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestProcess(t *testing.T) {
	boxtest.Run(t, boxtest.Tier{Name: plan.TierProcess, Config: config})
}

func TestSupervised(t *testing.T) {
	boxtest.Run(t, boxtest.Tier{Name: plan.TierSupervised, Config: supervised})
}

// supervised configures a box whose policy allows nothing.
func supervised(t testing.TB) plan.Config {
	c := config(t)
	c.Tier, c.Journal = plan.TierSupervised, filepath.Join(filepath.Dir(c.RunDir), "journal")
	c.Phases = []plan.Phase{phase(t, time.Time{})}
	if err := os.Mkdir(c.Journal, 0o700); err != nil {
		t.Fatal(err)
	}
	return c
}

// phase is a policy that allows some hosts, until a time.
func phase(t testing.TB, until time.Time, allow ...string) plan.Phase {
	t.Helper()
	return phaseOf(t, until, "version: 1\nnetwork:\n  allow: "+string(must(json.Marshal(append([]string{}, allow...)))))
}

// phaseOf is the policy of a policy file, until a time.
func phaseOf(t testing.TB, until time.Time, text string) plan.Phase {
	t.Helper()
	return boxtest.Phase(t, until, text)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestWorkspace(t *testing.T) {
	boxtest.Run(t, boxtest.Tier{Name: plan.TierWorkspace, Config: workspace})
}

// locked is workspace with everything that the host has to confine it, and with the host's network.
func locked(t testing.TB) plan.Config {
	c := workspace(t)
	c.Confine, c.Net, c.Journal = plan.ConfineAuto, plan.NetHost, filepath.Join(filepath.Dir(c.RunDir), "journal")
	if err := os.Mkdir(c.Journal, 0o700); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestLocked(t *testing.T) {
	boxtest.Run(t, boxtest.Tier{Name: plan.TierWorkspace, Config: locked})
}

// ruled is locked with a gate whose policy allows nothing.
func ruled(t testing.TB) plan.Config {
	c := locked(t)
	c.Net, c.Phases = plan.NetRules, []plan.Phase{phase(t, time.Time{})}
	return c
}

func TestRuled_Ports(t *testing.T) {
	boxtest.RunPorts(t, boxtest.Tier{Name: plan.TierWorkspace, Config: ruled})
}

// TestMountPoints starts a box on a tree without /proc and similar directories: the mounts of init must leave no trace
// in the history.
func TestMountPoints(t *testing.T) {
	c := config(t)
	dir := filepath.Dir(c.RunDir)
	for _, d := range []string{"tree/usr", "tree/etc", "up", "work"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	spec := rootspec.Spec{
		Overlays: []rootspec.Overlay{{Target: "/", Lowers: []string{dir + "/tree"}, Upper: dir + "/up", Work: dir + "/work"}}}
	for _, o := range c.Spec.Overlays {
		if o.Target == "/usr" {
			spec.Overlays = append(spec.Overlays, o)
		}
	}
	for _, l := range c.Spec.Skeleton {
		if err := os.Symlink(l.Link, dir+"/tree"+l.Path); err != nil {
			t.Fatal(err)
		}
	}
	c.Spec = spec
	x := (boxtest.Tier{Config: func(testing.TB) plan.Config { return c }}).Start(t)
	if r := x.Sh(t, "ls -d /proc/1/status /dev/null /sys/devices /run /tmp && touch /etc/made"); r.Exit.Code != 0 {
		t.Errorf("%+v", r)
	}
	left, err := filepath.Glob(dir + "/up/*")
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "etc" {
		t.Errorf("the upper directory contains %q, %v", left, err)
	}
}

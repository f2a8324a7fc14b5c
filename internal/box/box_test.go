//go:build linux && (amd64 || arm64)

package box_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// The suite runs as it is started; real root runs it a second time as an
// ordinary user, who runs it as uid 0 of a user namespace, as the daemon does.
const realID = "COPPICE_TEST_REAL_ID"

func TestMain(m *testing.M) {
	if handled, code := box.Dispatch(os.Args); handled {
		os.Exit(code)
	}
	if os.Getenv(realID) == "" && os.Getuid() != 0 {
		os.Exit(again(&syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}, realID+"="+strconv.Itoa(os.Getuid())+":"+strconv.Itoa(os.Getgid())))
	}
	code := m.Run()
	if os.Getuid() == 0 && os.Getenv(realID) == "" && os.Getenv("COPPICE_TEST_ROOT_ONLY") == "" {
		fmt.Println("--- as an ordinary user")
		code |= again(&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1001, Gid: 1001}})
	}
	os.Exit(code)
}

func again(attr *syscall.SysProcAttr, env ...string) int {
	args := slices.DeleteFunc(slices.Clone(os.Args), func(a string) bool { // files of go test that the user may not write
		return strings.HasPrefix(a, "-test.testlogfile") || strings.HasPrefix(a, "-test.coverprofile") || strings.HasPrefix(a, "-test.gocoverdir")
	})
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: args, Dir: "/", Env: append(os.Environ(), env...), Stdout: os.Stdout, Stderr: os.Stderr, SysProcAttr: attr}
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
	dir, err := os.MkdirTemp("/var/tmp", "box")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := plan.Config{ID: "test", Name: "test", RunDir: filepath.Join(dir, "run"), Caller: caller(), User: plan.UserRoot}
	if err := os.Mkdir(c.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, top := range []string{"/usr", "/etc", "/var", "/root", "/home"} {
		o := rootspec.Overlay{Target: top, Lowers: []string{top}, Upper: dir + top + "/upper", Work: dir + top + "/work", Wrap: top == "/var"}
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

func start(t testing.TB, change ...func(*plan.Config)) (*box.Box, plan.Enforced) {
	t.Helper()
	c := config(t)
	for _, f := range change {
		f(&c)
	}
	b, e, err := box.Start(context.Background(), c)
	if err != nil {
		log, _ := os.ReadFile(c.RunDir + "/keeper.log")
		t.Fatalf("start: %v\n%s", err, log)
	}
	t.Cleanup(func() {
		if err := b.Stop(context.Background(), 0); err != nil {
			t.Error(err)
		}
		if log, _ := os.ReadFile(c.RunDir + "/keeper.log"); len(log) > 0 {
			t.Logf("keeper.log: %s", log)
		}
		b.Close()
	})
	return b, e
}

// result is what came of an exec.
type result struct {
	started        wire.Started
	stdout, stderr string
	exit           wire.Exit
	failed         *wire.Error
	dropped        int64
	err            error
}

func collect(s io.Reader) (r result) {
	var out, errs bytes.Buffer
	defer func() { r.stdout, r.stderr = out.String(), errs.String() }()
	for {
		t, p, err := wire.ReadFrame(s, nil)
		if err != nil {
			r.err = err
			return r
		}
		switch t {
		case wire.FrameStarted:
			json.Unmarshal(p, &r.started)
		case wire.FrameStdout:
			out.Write(p)
		case wire.FrameStderr:
			errs.Write(p)
		case wire.FrameDropped:
			var d wire.Dropped
			json.Unmarshal(p, &d)
			r.dropped += d.Bytes
		case wire.FrameExit:
			json.Unmarshal(p, &r.exit)
			return r
		case wire.FrameFailed:
			r.failed = new(wire.Error)
			json.Unmarshal(p, r.failed)
			return r
		}
	}
}

func run(t testing.TB, b *box.Box, req wire.ExecRequest) result {
	t.Helper()
	s, err := b.Exec(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r := collect(s)
	if r.err != nil {
		t.Fatalf("%q: %v", req.Cmd, r.err)
	}
	return r
}

func sh(t testing.TB, b *box.Box, script string) result {
	t.Helper()
	return run(t, b, wire.ExecRequest{Cmd: []string{"sh", "-c", script}})
}

func TestSmoke(t *testing.T) {
	b, e := start(t)
	t.Logf("%+v", e)
	r := sh(t, b, "id; echo err >&2; cat /proc/mounts; ls -la / /dev /proc/1/ /sys; cat /proc/self/status; hostname; env; ls -la /proc/self/fd; ps ax; exit 3")
	t.Logf("%s\n%s\n%+v", r.stdout, r.stderr, r.exit)
}

var _ = strings.TrimSpace
var _ sync.Mutex
var _ time.Duration

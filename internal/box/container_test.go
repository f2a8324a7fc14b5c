//go:build linux && (amd64 || arm64)

package box_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// TestContainer runs the suite in tier container, with runc. With -short it runs what differs from tier supervised, as
// root.
func TestContainer(t *testing.T) {
	onlyInFullAsUser(t)
	requireContainer(t)
	boxtest.Run(t, boxtest.Tier{Name: plan.TierContainer, Config: contained, Differing: true})
}

// onlyInFullAsUser skips a test, with -short, for an ordinary user.
func onlyInFullAsUser(t *testing.T) {
	t.Helper()
	if testing.Short() && !caller().Root {
		t.Skip("needs full-run: root runs it; as a user, TestContainer_RuntimeOmitsAWall and the attackers start boxes")
	}
}

// contained is supervised in a container of runc.
func contained(t testing.TB) plan.Config {
	c := supervised(t)
	c.Tier, c.Runtime = plan.TierContainer, programtest.Runc()
	return c
}

// requireContainer skips a test where runc does not start a container.
func requireContainer(t *testing.T) {
	t.Helper()
	if programtest.Runc() == "" {
		t.Skip("needs oci-runtime: an OCI runtime makes the container")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b, _, err := box.Start(ctx, programtest.Programs(), contained(t))
	if err != nil {
		t.Skipf("needs oci-runtime: %v", err)
	}
	defer b.Close()
	if err := b.Stop(ctx, 0); err != nil {
		t.Fatal(err)
	}
}

// wrapped is contained with a runtime that runs a script, in the directory with the bundle, before it becomes runc. Its
// arguments are those of the runtime.
func wrapped(t *testing.T, script string) plan.Config {
	t.Helper()
	c := contained(t)
	at := filepath.Join(filepath.Dir(c.RunDir), "runc-wrapped")
	text := fmt.Sprintf("#!/bin/sh\n%s\nexec %s \"$@\"\n", script, c.Runtime)
	if err := os.WriteFile(at, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	c.Runtime = at
	return c
}

// TestContainer_RuntimeOmitsAWall starts boxes with runtimes that do not make the container of the bundle. Init must
// notice it: what the runtime omits, nothing else provides.
func TestContainer_RuntimeOmitsAWall(t *testing.T) {
	t.Parallel()
	requireContainer(t)
	boxWith(t, wrapped(t, ":")) // a script works as a runtime
	for name, script := range map[string]string{
		"no pid namespace":         `sed -i 's/{"type":"pid"},//' config.json`,
		"no ipc namespace":         `sed -i 's/{"type":"ipc"},//' config.json`,
		"no uts namespace":         `sed -i 's/{"type":"uts"},//' config.json`,
		"another net namespace":    `sed -i 's/{"type":"ipc"},/&{"type":"network"},/' config.json`,
		"privileges can be gained": `sed -i 's/"noNewPrivileges":true/"noNewPrivileges":false/' config.json`,
		"no profile":               `sed -i 's/,"seccomp":{.*}}$/}}/' config.json`,
		"more capabilities":        `sed -i 's/"CAP_CHOWN",/&"CAP_SYS_MODULE",/g' config.json`,
		"fewer capabilities":       `sed -i 's/"CAP_CHOWN",//g' config.json`,
		"nothing is masked":        `sed -i 's/"maskedPaths":\[[^]]*\]/"maskedPaths":[]/' config.json`,
		"nothing is read-only":     `sed -i 's/"readonlyPaths":\[[^]]*\]/"readonlyPaths":[]/' config.json`,
		"another program runs":     `sed -i 's,"/run/coppice-contained","/bin/true",' config.json`,
		"no container":             `exec /root/run/coppice-contained`,
		"no container, as init":    `bash -c 'exec -a /run/coppice-contained /root/run/coppice-contained' & exit 0`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := wrapped(t, script)
			b, _, err := box.Start(t.Context(), programtest.Programs(), c)
			if err == nil {
				defer b.Close()
				t.Errorf("the box started: %v", b.Stop(t.Context(), 0))
			}
			if !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
				t.Errorf("%v", err)
			}
			t.Log(err)
		})
	}
}

// TestContainer_RuntimeRunsOn starts boxes with runtimes that do not end when the container is made. No command may run
// beside them.
func TestContainer_RuntimeRunsOn(t *testing.T) {
	t.Parallel()
	requireContainer(t)
	runc := programtest.Runc()
	for name, script := range map[string]string{
		"fails at the end":    runc + ` "$@"; exit 9`,
		"fails late":          runc + ` "$@"; sleep 1; exit 9`,
		"leaves a process":    `sleep 290 & `,
		"leaves a descriptor": `sleep 291 3>&- & `,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _, err := box.Start(t.Context(), programtest.Programs(), wrapped(t, script))
			if err == nil {
				defer b.Close()
				t.Errorf("the box started: %v", b.Stop(t.Context(), 0))
			}
			if !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
				t.Errorf("%v", err)
			}
			t.Log(err)
		})
	}
	// A runtime that is slow to exit works.
	b := boxWith(t, wrapped(t, runc+` "$@" || exit; sleep 1; exit 0`))
	if r := b.Sh(t, "echo $$"); r.Exit.Code != 0 {
		t.Errorf("%+v", r)
	}
}

// boxWith starts a box and stops it when the test ends.
func boxWith(t *testing.T, c plan.Config) *boxtest.Box {
	t.Helper()
	return boxtest.Tier{Name: c.Tier, Config: func(testing.TB) plan.Config { return c }}.Start(t)
}

// processes returns the ids of the processes whose arguments begin with those that are given.
func processes(t *testing.T, args ...string) (pids []int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		line, err := os.ReadFile(name)
		if err != nil || !strings.HasPrefix(string(line), strings.Join(args, "\x00")+"\x00") {
			continue // or it has exited
		}
		pids = append(pids, must(strconv.Atoi(filepath.Base(filepath.Dir(name)))))
	}
	return pids
}

// TestContainer_RuntimeLeaksDescriptors starts a box with a runtime that leaves directories of the conductor open in
// PID 1, as runc before 1.1.12 did (CVE-2024-21626).
func TestContainer_RuntimeLeaksDescriptors(t *testing.T) {
	t.Parallel()
	requireContainer(t)
	boxWith(t, wrapped(t, `exec 5</usr 6</state 7</; set -- $(echo "$@" | sed 's/preserve-fds 2/preserve-fds 5/')`))
	inits := processes(t, plan.ContainedPath)
	if len(inits) == 0 {
		t.Fatal("PID 1 was not found")
	}
	for _, pid := range inits { // also those of other tests
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && slices.Contains([]string{"/usr", "/state", "/"}, to) {
				t.Errorf("PID 1 has %s: %s", fd, to)
			}
		}
	}
}

// TestContainer_RuntimeBindsLess starts a box with a runtime that binds directories without the mounts in them. The
// walls that are mounts in the sandbox's root must not depend on it.
func TestContainer_RuntimeBindsLess(t *testing.T) {
	t.Parallel()
	requireContainer(t)
	c := wrapped(t, `sed -i 's/"rbind"/"bind"/g' config.json`)
	c.Access.ReadOnly = []rootspec.Place{{Said: "/etc", At: []string{"/etc"}}}
	b := boxWith(t, c)
	if r := b.Sh(t, "touch /etc/new || echo refused"); r.Stdout != "refused\n" {
		t.Errorf("a read-only directory can be changed: %+v", r)
	}
	if r := b.Sh(t, "stat -f -c %T /run /dev /dev/pts /proc"); r.Stdout != "tmpfs\ntmpfs\ndevpts\nproc\n" {
		t.Errorf("%+v", r)
	}
}

// TestContainer_LargePlan starts a box whose plan does not fit into the buffer of a socket.
func TestContainer_LargePlan(t *testing.T) {
	t.Parallel()
	requireContainer(t)
	c := contained(t)
	for i := range 64 {
		c.Env = append(c.Env, fmt.Sprintf("BIG%d=%s", i, strings.Repeat("x", 16<<10)))
	}
	if r := boxWith(t, c).Sh(t, "echo ${#BIG63}"); r.Stdout != "16384\n" {
		t.Errorf("%.1000v", r)
	}
}

// TestContainer_HangingRuntimeEndsWithTheKeeper kills the keeper while the runtime makes the container.
func TestContainer_HangingRuntimeEndsWithTheKeeper(t *testing.T) {
	t.Parallel()
	requireContainer(t)
	c := wrapped(t, "sleep 300")
	c.ID = fmt.Sprintf("hanging%08x", rand.Uint32())
	started := make(chan error, 1)
	go func() {
		_, _, err := box.Start(t.Context(), programtest.Programs(), c)
		started <- err
	}()
	var conductor []int
	within(t, "the conductor starts", func() bool {
		conductor = processes(t, initlink.ContainerArgv0, c.ID)
		return len(conductor) > 0 && len(processes(t, "sleep", "300")) > 0
	})
	status := string(must(os.ReadFile(fmt.Sprintf("/proc/%d/status", conductor[0]))))
	_, parent, _ := strings.Cut(status, "\nPPid:\t")
	parent, _, _ = strings.Cut(parent, "\n")
	if err := unix.Kill(must(strconv.Atoi(parent)), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-started; err == nil {
		t.Error("the box started")
	}
	within(t, "the conductor ends", func() bool { return len(processes(t, initlink.ContainerArgv0, c.ID)) == 0 })
}

// within waits until happened returns true, at most a minute.
func within(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !happened(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// TestContainer_ReplacedRuntime replaces the runtime while a box runs: the box needs it no more. The next start does.
func TestContainer_ReplacedRuntime(t *testing.T) {
	t.Parallel()
	requireContainer(t)
	c := wrapped(t, ":")
	b := boxWith(t, c)
	other := c.Runtime + ".new"
	if err := os.WriteFile(other, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, c.Runtime); err != nil {
		t.Fatal(err)
	}
	if r := b.Sh(t, "echo $$"); r.Exit.Code != 0 {
		t.Errorf("%+v", r)
	}
	if err := b.Stop(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if _, _, err := box.Start(t.Context(), programtest.Programs(), c); !fault.Is(err, fault.Unsupported) {
		t.Errorf("%v", err)
	}
	// A link has not been checked by the daemon, which resolves links first.
	if err := errors.Join(os.Remove(c.Runtime), os.Symlink(programtest.Runc(), c.Runtime)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := box.Start(t.Context(), programtest.Programs(), c); !fault.Is(err, fault.Unsupported) {
		t.Errorf("%v", err)
	}
}

//go:build linux && (amd64 || arm64)

package probe

import (
	"encoding/json"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/program"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

func TestMain(m *testing.M) { os.Exit(programtest.Run(m)) }

// self returns coppice-init.
func self(t testing.TB) *os.File {
	t.Helper()
	f, err := programtest.Programs().File(program.Init)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestProbe(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	start := time.Now()
	r, err := Probe(t.Context(),
		Options{Program: self(t), Home: filepath.Join(home, "not", "yet"), Root: os.Getuid() == 0})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v", time.Since(start))
	check(t, r)
	if left, _ := os.ReadDir(home); len(left) != 0 {
		t.Errorf("files left in the home: %v", left)
	}
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", b)
}

func check(t *testing.T, r Report) {
	t.Helper()
	if r.Kernel == "" || r.Tier == "" || r.Driver == "" {
		t.Errorf("kernel %q tier %q driver %q", r.Kernel, r.Tier, r.Driver)
	}
	seen := map[string]bool{}
	for _, it := range r.Items {
		if seen[it.Group+it.Name] {
			t.Errorf("%s %s is listed twice", it.Group, it.Name)
		}
		seen[it.Group+it.Name] = true
		if it.Tried == "" {
			t.Errorf("%s: Tried is empty", it.Name)
		}
		if it.State != OK && it.Remedy == "" && it.Group != Tiers {
			t.Errorf("%s is %s without a remedy", it.Name, it.State)
		}
		if strings.Contains(it.Remedy, "\n") {
			t.Errorf("%s: the remedy is not a single line", it.Name)
		}
	}
	for _, want := range []string{UserNamespaces, Overlay, Whiteouts, FreshProc, Devpts, Seccomp, SeccompNotify,
		Landlock, HomeFS} {
		if !seen[Features+want] {
			t.Errorf("%s was not tried", want)
		}
	}
}

func TestProbe_Quick(t *testing.T) {
	t.Parallel()
	r, err := Probe(t.Context(), Options{Program: self(t), Home: t.TempDir(), Root: os.Getuid() == 0, Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	check(t, r)
	if _, ok := r.Item(Features, Reflink); ok {
		t.Error("a quick probe tried reflinks")
	}
}

// TestProbeAsUser runs the probe in a child process of an ordinary user.
func TestProbeAsUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs real-root: TestProbe has done it for this user")
	}
	u, err := user.Lookup("coppiceuser")
	if err != nil {
		t.Skip("needs ordinary-user: to be one (make it: useradd coppiceuser)")
	}
	uid, _ := strconv.Atoi(u.Uid)
	home, err := os.MkdirTemp("/tmp", "probe")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	if err := os.Chown(home, uid, uid); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestProbe_Quick$|^TestProbe$", "-test.v")
	cmd.Env = []string{"TMPDIR=" + home, "HOME=" + home, "PATH=/usr/bin:/bin",
		"COPPICE_EXEC_PATH=" + os.Getenv("COPPICE_EXEC_PATH")}
	cmd.Dir = home
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v", err)
	}
	t.Logf("%s", out)
}

func TestRemedies_NameCause(t *testing.T) {
	t.Parallel()
	tests := []struct {
		host    host
		feature string
		want    string
	}{
		{host{cloneKnob: true}, UserNamespaces, "kernel.unprivileged_userns_clone=1"},
		{host{apparmor: true}, UserNamespaces, "kernel.apparmor_restrict_unprivileged_userns=0"},
		{host{apparmor: true}, Overlay, "kernel.apparmor_restrict_unprivileged_userns=0"},
		{host{none: true}, UserNamespaces, "user.max_user_namespaces"},
		{host{kubernetes: true, container: true}, UserNamespaces, "seccompProfile"},
		{host{kubernetes: true, container: true}, FreshProc, "procMount: Unmasked"},
		{host{container: true}, UserNamespaces, "--security-opt"},
		{host{container: true}, FreshProc, "systempaths=unconfined"},
		{host{}, Cgroup, "Delegate=yes"},
		{host{}, SubordinateIDs, "apt-get install uidmap"},
	}
	for _, tt := range tests {
		if got := tt.host.remedy(tt.feature, "EPERM"); !strings.Contains(got, tt.want) {
			t.Errorf("%s with %+v: %q does not say %q", tt.feature, tt.host, got, tt.want)
		}
	}
}

func BenchmarkProbeQuick(b *testing.B) {
	home := b.TempDir()
	for b.Loop() {
		if _, err := Probe(b.Context(),
			Options{Program: self(b), Home: home, Root: os.Getuid() == 0, Quick: true}); err != nil {
			b.Fatal(err)
		}
	}
}

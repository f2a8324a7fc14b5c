//go:build linux

package cli_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/coppice-dev/coppice/internal/cli"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

// withPrograms runs tests with an environment in which the program finds its helpers.
type withPrograms struct{ *testing.M }

func (w withPrograms) Run() int { return programtest.Run(w.M) }

// TestMain makes the test binary also the program: a script that runs "coppice" runs the real main. Packages whose
// processes re-execute it under other names handle those names themselves.
func TestMain(m *testing.M) {
	testscript.Main(withPrograms{m}, map[string]func(){
		"coppice":  func() { os.Exit(cli.Main(os.Args)) },
		"soak":     func() { os.Exit(soak(os.Args)) },
		"witness":  witness,
		"labhosts": labhosts,
		"stuck":    stuck,
		"inpod":    inpod,
	})
}

// TestScripts runs the scripts testdata/script/*.txtar.
func TestScripts(t *testing.T) {
	t.Parallel()
	var two builds
	t.Cleanup(two.remove)
	containers := sync.OnceValue(func() bool {
		return exec.CommandContext(t.Context(), "../../scripts/containers").Run() == nil
	})
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setup,
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "user":
				return os.Getuid() != 0, nil
			case "repeat": // the script also runs as root, and only differences matter
				return testing.Short() && os.Getuid() != 0, nil
			case "static":
				return static, nil
			case "builds":
				return canBuild(), nil
			case "containers":
				return containers(), nil
			case "runc":
				return programtest.Runc() != "", nil
			case "race":
				return looptest.Race, nil
			case "cgroup": // version 2, in which sandboxes of root have their cgroups
				mounts, err := os.ReadFile("/proc/self/mountinfo")
				return regexp.MustCompile(`(?m)^(\S+ ){5}rw\S* .*- cgroup2 `).Match(mounts), err
			case "btrfs":
				known, err := os.ReadFile("/proc/filesystems")
				_, missing := exec.LookPath("mkfs.btrfs")
				return strings.Contains(string(known), "\tbtrfs\n") && missing == nil, err
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits":      cmdExits,
			"capture":    cmdCapture,
			"eventually": cmdEventually,
			"daemon":     cmdDaemon,
			"broker":     cmdBroker,
			"tmpfs":      cmdTmpfs,
			"btrfs":      cmdBtrfs,
			"overlayfs":  cmdOverlayfs,
			"pod":        cmdPod,
			"lines":      cmdLines,
			"rootfs":     cmdRootfs,
			"repository": cmdRepository,
			"outside":    cmdOutside,
			"builds":     two.put,
		},
	})
}

// setup gives each script its own home, and stops its sandboxes and daemons at the end.
func setup(e *testscript.Env) error {
	home := filepath.Join(e.WorkDir, "store")
	e.Setenv("COPPICE_HOME", home)
	e.Setenv("COPPICE_IDLE", "30s")
	e.Setenv("COPPICE_EXEC_PATH", os.Getenv("COPPICE_EXEC_PATH"))
	e.Setenv("GORACE", "atexit_sleep_ms=0")
	e.Setenv("HOME", filepath.Join(e.WorkDir, "me"))
	e.Setenv("LANG", "C.UTF-8")
	if err := os.Mkdir(filepath.Join(e.WorkDir, "me"), 0o700); err != nil {
		return err
	}
	e.Setenv("ROOTFS", filepath.Join(e.WorkDir, "rootfs"))
	testdata, err := filepath.Abs("testdata") // files that scripts share
	if err != nil {
		return err
	}
	e.Setenv("TESTDATA", testdata)
	env := append([]string{}, e.Vars...)
	down := func(home string) {
		defer func() { _ = killBroker(home) }()
		if _, err := os.Stat(filepath.Join(home, "format")); err != nil {
			return
		}
		run := func(args ...string) string {
			cmd := exec.Command("coppice", args...)
			cmd.Env = append(env, "COPPICE_HOME="+home)
			out, _ := cmd.Output()
			return string(out)
		}
		if names := strings.Fields(run("ls", "-q")); len(names) > 0 {
			run(append([]string{"rm", "--force"}, names...)...)
		}
		run("serve", "--stop")
	}
	e.Values[takesDown] = down
	e.Defer(func() { down(home) })
	return nil
}

// takesDown is the key of the function that stops the sandboxes and the daemon of a home.
const takesDown = "down"

// unmounted unmounts dir at the end of the script. It stops the daemon first, which may have its home there, and
// could not be found afterwards.
func unmounted(ts *testscript.TestScript, dir string) {
	ts.Defer(func() {
		ts.Value(takesDown).(func(home string))(ts.Getenv("COPPICE_HOME"))
		_ = exec.Command("umount", "-l", dir).Run()
	})
}

// cmdExits is "exits CODE PROGRAM ARGS...". It runs a program, which must exit with the code.
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var ee *exec.ExitError
	switch {
	case errors.As(err, &ee):
		got = ee.ExitCode()
	case err != nil:
		ts.Fatalf("run: %v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// cmdCapture is "capture VAR PROGRAM ARGS...". It sets VAR to the stdout of a program, trimmed.
func cmdCapture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: capture VAR PROGRAM ARGS...")
	}
	ts.Check(ts.Exec(args[1], args[2:]...))
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// cmdEventually is "eventually PROGRAM ARGS...". It runs a program until it succeeds.
func cmdEventually(ts *testscript.TestScript, neg bool, args []string) {
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = ts.Exec(args[0], args[1:]...); (err == nil) != neg {
			return
		}
	}
	ts.Fatalf("no success within a minute: %v", err)
}

// cmdDaemon is "daemon kill|gone|runs|comes". With kill it kills the home's daemon with SIGKILL and waits until it
// has exited; with gone it waits until the daemon has exited; with runs the daemon must run; with comes it waits
// until one runs.
func cmdDaemon(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: daemon kill|gone|runs|comes")
	}
	lock := filepath.Join(ts.Getenv("COPPICE_HOME"), "lock")
	b, err := os.ReadFile(lock)
	for end := time.Now().Add(patience); args[0] == "comes" && len(b) == 0 &&
		time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		b, err = os.ReadFile(lock)
	}
	ts.Check(err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		if args[0] == "gone" {
			return
		}
		ts.Fatalf("no daemon runs")
	}
	if args[0] == "runs" || args[0] == "comes" {
		ts.Check(syscall.Kill(pid, 0))
		return
	}
	if args[0] == "kill" {
		ts.Check(syscall.Kill(pid, syscall.SIGKILL))
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		// A zombie that its parent does not reap has also exited.
		st, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(st), ") Z ") {
			return
		}
	}
	ts.Fatalf("daemon %d still runs", pid)
}

// cmdTmpfs is "tmpfs DIR OPTIONS". It mounts a tmpfs for the script, and requires root.
func cmdTmpfs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: tmpfs DIR OPTIONS")
	}
	if os.Getuid() != 0 || runtime.GOOS != "linux" {
		ts.Fatalf("needs root: say [user] skip first")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	out, err := exec.Command("mount", "-t", "tmpfs", "-o", args[1], "tmpfs", dir).CombinedOutput()
	if err != nil {
		ts.Fatalf("mount: %v: %s", err, out)
	}
	unmounted(ts, dir)
}

// cmdBtrfs is "btrfs DIR". It mounts a btrfs in a file, and requires root.
func cmdBtrfs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: btrfs DIR")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	for _, c := range [][]string{{"truncate", "-s", "512M", dir + ".img"}, {"mkfs.btrfs", "-q", dir + ".img"},
		{"mount", "-o", "loop", dir + ".img", dir}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			ts.Fatalf("%s: %v: %s", c[0], err, out)
		}
	}
	unmounted(ts, dir)
}

// cmdOverlayfs is "overlayfs DIR". It mounts an overlay file system with its layers on a tmpfs, and requires root.
func cmdOverlayfs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: overlayfs DIR")
	}
	dir := ts.MkAbs(args[0])
	cmdTmpfs(ts, false, []string{args[0] + ".mem", "mode=755"})
	for _, d := range []string{dir, dir + ".mem/lower", dir + ".mem/upper", dir + ".mem/work"} {
		ts.Check(os.MkdirAll(d, 0o755))
	}
	opts := "lowerdir=" + dir + ".mem/lower,upperdir=" + dir + ".mem/upper,workdir=" + dir + ".mem/work"
	out, err := exec.Command("mount", "-t", "overlay", "-o", opts, "overlay", dir).CombinedOutput()
	if err != nil {
		ts.Fatalf("mount: %v: %s", err, out)
	}
	unmounted(ts, dir)
}

// cmdOutside is "outside VAR". It creates a directory outside of /tmp, since a sandbox has its own /tmp, and sets VAR
// to its path. It also writes a configuration of git.
func cmdOutside(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: outside VAR")
	}
	dir, err := os.MkdirTemp("/var/tmp", "coppice-script-")
	ts.Check(err)
	ts.Defer(func() { _ = os.RemoveAll(dir) })
	ts.Setenv(args[0], dir)
	ts.Check(os.WriteFile(filepath.Join(ts.Getenv("HOME"), ".gitconfig"),
		[]byte("[user]\n\tname = User\n\temail = user@example.org\n[init]\n\tdefaultBranch = main\n[protocol "+
			"\"file\"]\n\tallow = always\n"), 0o600))
}

// cmdLines is "lines N". The last stdout must have N lines.
func cmdLines(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: lines N")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := strings.Count(ts.ReadFile("stdout"), "\n"); (got == want) == neg {
		ts.Fatalf("%d lines, want %d", got, want)
	}
}

// cmdRepository is "repository". It creates $REPO, a git repository with a commit, outside of /tmp, since a sandbox
// has its own /tmp. It also writes a configuration of git.
func cmdRepository(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: repository")
	}
	cmdOutside(ts, false, []string{"REPO"})
	dir := ts.Getenv("REPO")
	for name, text := range map[string]string{"a.txt": "one\ntwo\nthree\n", "dir/b.txt": "b\n", "dir/c.txt": "c\n",
		".gitignore": "*.o\n"} {
		ts.Check(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		ts.Check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	for _, c := range [][]string{{"init", "-q"}, {"add", "-A"}, {"commit", "-qm", "first"}} {
		ts.Check(ts.Exec("git", append([]string{"-C", dir}, c...)...))
	}
}

// programs are the programs in the root file system of cmdRootfs.
var programs = []string{"sh", "bash", "cat", "ls", "rm", "mkdir", "mv", "ln", "touch", "sleep", "head", "wc", "id",
	"env", "pwd", "chmod",
	"seq", "dd", "true", "false", "stat", "kill", "stty", "tty", "test", "yes", "cp", "tr", "sync", "mkfifo", "echo"}

// cmdRootfs is "rootfs [PROGRAM...]". It creates $ROOTFS, a small root file system that also has these programs.
func cmdRootfs(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("usage: rootfs [PROGRAM...]")
	}
	ts.Check(makeRootfs(ts.Getenv("ROOTFS"), args...))
}

// makeRootfs creates a small root file system with programs of this machine: the default ones, and more.
func makeRootfs(root string, more ...string) error {
	texts := map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n",
		"etc/group":  "root:x:0:\n",
		"work/a":     "one\ntwo\nthree\n",
		"work/b":     "gone\n",
	}
	for _, d := range []string{"etc", "root", "usr", "var", "work"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	for name, text := range texts {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	files := map[string]bool{}
	for _, p := range slices.Concat(programs, more) {
		path, err := exec.LookPath(p)
		if err != nil {
			continue
		}
		files[path] = true
		for _, lib := range libraries(path) {
			files[lib] = true
		}
	}
	for f := range files {
		// "/usr/bin/x" also serves as "/bin/x", whether /usr is merged or not.
		to := filepath.Join(root, f)
		if dir := filepath.Dir(f); dir == "/bin" || dir == "/usr/bin" {
			to = filepath.Join(root, "bin", filepath.Base(f))
		}
		b, err := os.ReadFile(f)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err == nil {
			err = os.WriteFile(to, b, 0o755)
		}
		if err != nil {
			return err
		}
	}
	err := os.Symlink("../bin", filepath.Join(root, "usr", "bin"))
	if errors.Is(err, fs.ErrExist) { // it contains a program or library
		return nil
	}
	return err
}

// libraries returns the libraries of a program, including its dynamic loader.
func libraries(program string) (paths []string) {
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		return nil // static
	}
	for _, w := range strings.Fields(string(out)) {
		if strings.HasPrefix(w, "/") {
			paths = append(paths, w)
		}
	}
	return paths
}

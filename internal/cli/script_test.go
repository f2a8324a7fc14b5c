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
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/coppice-dev/coppice/internal/cli"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

// withPrograms runs tests where the program finds its helpers.
type withPrograms struct{ *testing.M }

func (w withPrograms) Run() int { return programtest.Run(w.M) }

// TestMain makes this binary the program as well: a script that runs "coppice"
// runs the real main. What that starts again under other names is found by the
// packages that do.
func TestMain(m *testing.M) {
	testscript.Main(withPrograms{m}, map[string]func(){
		"coppice":  func() { os.Exit(cli.Main(os.Args)) },
		"soak":     func() { os.Exit(soak(os.Args)) },
		"witness":  witness,
		"labhosts": labhosts,
		"stuck":    stuck,
	})
}

// TestScripts runs the program as it is typed: testdata/script/*.txtar.
func TestScripts(t *testing.T) {
	t.Parallel()
	var two builds
	t.Cleanup(two.remove)
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setup,
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "user":
				return os.Getuid() != 0, nil
			case "repeat": // of what has run as root; only what differs is of interest
				return testing.Short() && os.Getuid() != 0, nil
			case "static":
				return static, nil
			case "builds":
				return canBuild(), nil
			case "race":
				return looptest.Race, nil
			case "cgroup": // of version 2, where boxes of real root have theirs
				mounts, err := os.ReadFile("/proc/self/mountinfo")
				return regexp.MustCompile(`(?m)^(\S+ ){5}rw\S* .*- cgroup2 `).Match(mounts), err
			case "btrfs":
				known, err := os.ReadFile("/proc/filesystems")
				_, missing := exec.LookPath("mkfs.btrfs")
				return strings.Contains(string(known), "\tbtrfs\n") && missing == nil, err
			}
			return false, fmt.Errorf("no condition %q", cond)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits":      cmdExits,
			"capture":    cmdCapture,
			"eventually": cmdEventually,
			"daemon":     cmdDaemon,
			"tmpfs":      cmdTmpfs,
			"btrfs":      cmdBtrfs,
			"overlayfs":  cmdOverlayfs,
			"lines":      cmdLines,
			"rootfs":     cmdRootfs,
			"repository": cmdRepository,
			"outside":    cmdOutside,
			"builds":     two.put,
		},
	})
}

// setup gives each script a home of its own, and takes everything down at the
// end.
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
	testdata, err := filepath.Abs("testdata") // what scripts share
	if err != nil {
		return err
	}
	e.Setenv("TESTDATA", testdata)
	env := append([]string{}, e.Vars...)
	down := func(home string) {
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

// takesDown is the value of a script that ends the sandboxes and the daemon of a home.
const takesDown = "down"

// unmounted unmounts dir at the end of the script. The daemon, which may have its home there,
// ends before: without that nobody finds it any more.
func unmounted(ts *testscript.TestScript, dir string) {
	ts.Defer(func() {
		ts.Value(takesDown).(func(home string))(ts.Getenv("COPPICE_HOME"))
		_ = exec.Command("umount", "-l", dir).Run()
	})
}

// cmdExits: "exits CODE PROGRAM ARGS..." demands an exit code.
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

// cmdCapture: "capture VAR PROGRAM ARGS..." puts stdout, trimmed, into VAR.
func cmdCapture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: capture VAR PROGRAM ARGS...")
	}
	ts.Check(ts.Exec(args[1], args[2:]...))
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// cmdEventually: "eventually PROGRAM ARGS..." runs it until it succeeds.
func cmdEventually(ts *testscript.TestScript, neg bool, args []string) {
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = ts.Exec(args[0], args[1:]...); (err == nil) != neg {
			return
		}
	}
	ts.Fatalf("not within a minute: %v", err)
}

// cmdDaemon: "daemon kill" kills the home's daemon with SIGKILL and waits for
// its end; "daemon gone" waits until it has ended by itself; "daemon runs"
// demands that it runs; "daemon comes" waits until one does.
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
		// A zombie that nobody reaps is gone as well.
		st, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(st), ") Z ") {
			return
		}
	}
	ts.Fatalf("daemon %d is still there", pid)
}

// cmdTmpfs: "tmpfs DIR OPTIONS" mounts one for the script; it needs root and
// skips the script without.
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

// cmdBtrfs: "btrfs DIR" mounts one in a file; it needs root, as tmpfs does.
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

// cmdOverlayfs: "overlayfs DIR" mounts one, with all that it needs in memory; it
// needs root, as tmpfs does.
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

// cmdOutside: "outside VAR" makes a directory that is in no /tmp, which sandboxes have
// for themselves, and puts its path into VAR. Git there has a configuration of its own.
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

// cmdLines: "lines N" demands that the last stdout has so many lines.
func cmdLines(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: lines N")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := strings.Count(ts.ReadFile("stdout"), "\n"); (got == want) == neg {
		ts.Fatalf("%d lines, and %d in the script", got, want)
	}
}

// cmdRepository: "repository" makes $REPO, a git repository with a commit, in a place of
// which a sandbox does not have its own, as it has of /tmp; and the user's configuration.
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

// programs are what the root file system of "rootfs" has.
var programs = []string{"sh", "bash", "cat", "ls", "rm", "mkdir", "mv", "ln", "touch", "sleep", "head", "wc", "id",
	"env", "pwd", "chmod",
	"seq", "dd", "true", "false", "stat", "kill", "stty", "tty", "test", "yes", "cp", "tr", "sync", "mkfifo", "echo"}

// cmdRootfs: "rootfs [PROGRAM...]" makes $ROOTFS, a small root file system that has these
// programs, too.
func cmdRootfs(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("usage: rootfs [PROGRAM...]")
	}
	ts.Check(makeRootfs(ts.Getenv("ROOTFS"), args...))
}

// makeRootfs makes a small root file system of this machine's own programs, and more of them.
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
		// "/usr/bin/x" serves as "/bin/x" as well: merged or not.
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
	if errors.Is(err, fs.ErrExist) { // a program or library lies there
		return nil
	}
	return err
}

// libraries gives what a program is linked with, its loader too.
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

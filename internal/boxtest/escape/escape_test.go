//go:build linux && (amd64 || arm64)

package escape_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/boxtest/escape"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// realID is set in the environment of the copy of the suite that runs as uid 0 of a user namespace, like an ordinary
// user's daemon. Its value is "uid:gid" outside.
const realID = "COPPICE_ESCAPE_REAL_ID"

const victimArgv0 = "escape-victim"

// attacker is the path of the attacker inside.
const attacker = "/usr/local/bin/" + escape.Argv0

func TestMain(m *testing.M) {
	switch {
	case filepath.Base(os.Args[0]) == escape.Argv0 && len(os.Args) == 2 && os.Args[1] == selfWord:
		os.Exit(beSelf())
	case filepath.Base(os.Args[0]) == escape.Argv0 && len(os.Args) == 3 && os.Args[1] == escape.InspectWord:
		os.Exit(escape.Inspect(os.Args[2], os.Stdout))
	case filepath.Base(os.Args[0]) == escape.Argv0 && len(os.Args) == 3 && os.Args[1] == escape.HoldWord:
		os.Exit(escape.Hold(os.Args[2], os.Stdin, os.Stdout))
	case filepath.Base(os.Args[0]) == escape.Argv0:
		os.Exit(escape.Main(os.Args, os.Stdout))
	case os.Args[0] == victimArgv0:
		os.Exit(beVictim())
	}
	if os.Getenv(realID) == "" && os.Getuid() != 0 {
		code, err := again(&syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}, os.Args, fmt.Sprintf("%s=%d:%d", realID, os.Getuid(), os.Getgid()))
		if err != nil {
			fmt.Println("skip: feature user-namespaces:", err)
			os.Exit(0)
		}
		os.Exit(code)
	}
	os.Exit(programtest.Run(m))
}

func again(attr *syscall.SysProcAttr, args []string, env ...string) (int, error) {
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: args, Env: append(os.Environ(), env...), Stdout: os.Stdout,
		Stderr: os.Stderr, SysProcAttr: attr}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// TestAsUser runs the corpus a second time, as an ordinary user, if the suite runs as real root.
func TestAsUser(t *testing.T) { asUser(t, "^TestEscape$") }

// asUser runs tests again as an ordinary user, with the same flags for roots.
func asUser(t *testing.T, tests string) {
	t.Helper()
	if os.Getuid() != 0 || os.Getenv(realID) != "" {
		t.Skip("needs real-root: what this would run is the run as a user")
	}
	u, err := user.Lookup("coppiceuser")
	if err != nil {
		t.Skip("needs ordinary-user: to be one (make it: useradd coppiceuser)")
	}
	uid, _ := strconv.Atoi(u.Uid)
	cmd := exec.Command("/proc/self/exe", "-test.run="+tests, "-test.v="+strconv.FormatBool(testing.Verbose()),
		"-test.parallel=4",
		"-roots.for="+rootsFor.String(), "-roots.seed="+strconv.FormatUint(*rootsSeed, 10),
		"-roots.all="+strconv.FormatBool(*rootsAll))
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "TMPDIR=/tmp", "HOME="+u.HomeDir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}

// beVictim is the main function of a process outside, of the same user. When its stdin ends, it prints how many signals
// it received, and its canary.
func beVictim() int {
	got := make(chan os.Signal, 100)
	signal.Notify(got, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	canary := strings.Clone(os.Getenv("ESCAPE_SECRET"))
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	fmt.Println(len(got), canary)
	return 0
}

// selfWord is the argument in a script's interpreter line. For the kernel, "#!/proc/self/exe" is the program that
// executes the script, which is that of init. It is also the argument that makes the attacker's binary look for such a
// process.
const selfWord = "escape-self"

// beSelf opens the program of init while that is a command of the sandbox, and tries to write to it when it no longer
// runs (CVE-2019-5736).
func beSelf() int {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, name := range names {
			words, _ := os.ReadFile(name)
			if !strings.HasPrefix(string(words), "/proc/self/exe\x00"+selfWord+"\x00") {
				continue
			}
			fd, err := unix.Open(filepath.Join(filepath.Dir(name), "exe"), unix.O_PATH, 0)
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
				continue // it has exited
			}
			if err != nil {
				fmt.Println("refused:", err)
				return escape.Refused
			}
			for _, err := os.Stat(name); err == nil; _, err = os.Stat(name) {
				runtime.Gosched() // until it has exited
			}
			f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_WRONLY, 0)
			if err != nil {
				fmt.Println("refused:", err)
				return escape.Refused
			}
			_, err = f.WriteString("written by an attacker")
			fmt.Println("SUCCEEDED", err)
			return escape.Succeeded
		}
	}
	fmt.Println("the program of init was never seen")
	return 1
}

// interpreted executes the script until the attacker has opened its interpreter.
func interpreted(t *testing.T, b *box.Box) {
	t.Helper()
	type end struct {
		out  string
		exit wire.Exit
	}
	ended := make(chan end, 1)
	go func() {
		defer close(ended)
		out, exit := run(t, b, wire.ExecRequest{Cmd: []string{attacker, selfWord}, Dir: "/"})
		ended <- end{out, exit}
	}()
	for {
		out, exit := run(t, b, wire.ExecRequest{Cmd: []string{"/usr/local/bin/self"}, Dir: "/"})
		if exit.Code != 2 && exit.Code != 126 {
			t.Errorf("the program of init, as a command: exit %d %s\n%s", exit.Code, exit.Signal, out)
		}
		select {
		case e := <-ended:
			if e.exit.Code != escape.Refused {
				t.Errorf("exit %d %s\n%s", e.exit.Code, e.exit.Signal, e.out)
			}
			return
		default:
		}
	}
}

// otherUser returns the user that commands run as if not as root.
func otherUser() string {
	if os.Getenv(realID) == "" {
		return "agent" // for root, "me" is root
	}
	return plan.UserMe
}

// sandbox is a configuration in which the corpus runs.
type sandbox struct {
	name, user, net string
	gate, asks      bool
	tier            string // "" is process, or supervised with a gate
}

func sandboxes() []sandbox {
	other := otherUser()
	return []sandbox{
		{"root/off", plan.UserRoot, plan.NetOff, false, false, ""},
		{other + "/off", other, plan.NetOff, false, false, ""},
		{"root/host", plan.UserRoot, plan.NetHost, false, false, ""},
		{other + "/host", other, plan.NetHost, false, false, ""},
		{"root/gate", plan.UserRoot, plan.NetRules, true, false, ""},
		{other + "/gate", other, plan.NetRules, true, false, ""},
		{"root/ask", plan.UserRoot, plan.NetRules, true, true, ""},
		{other + "/ask", other, plan.NetRules, true, true, ""},
	}
}

// escapeTasks is the limit of tasks of a sandbox in tier gvisor. Without it, its kernel could have as many tasks
// on the host as the attacker creates.
const escapeTasks = 250

// start starts a box on the host's own system directories, with the attacker in /usr/local/bin.
func start(t *testing.T, o *outside, s sandbox) *box.Box {
	t.Helper()
	c := plan.Config{Trace: true, ID: "escape", Name: "escape",
		RunDir: filepath.Join(o.dir, "run-"+strings.ReplaceAll(s.name, "/", "-")), User: s.user, Net: s.net,
		Caller: plan.Caller{Root: true}, IdleAfter: -1}
	if v := os.Getenv(realID); v != "" {
		c.Caller = plan.Caller{}
		if _, err := fmt.Sscanf(v, "%d:%d", &c.Caller.UID, &c.Caller.GID); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(c.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	c.Journal = c.RunDir
	if s.gate {
		c.Tier, c.Phases, c.Asks = plan.TierSupervised, []plan.Phase{o.policy(t)}, s.asks
	}
	if s.tier != "" {
		c.Tier = s.tier
	}
	if s.tier == plan.TierContainer {
		c.Runtime = programtest.Runc()
	}
	if s.tier == plan.TierGvisor {
		c.Limits.Pids = escapeTasks
		o.facts.Tasks = escapeTasks + plan.OwnTasks
	}
	live := filepath.Join(o.dir, "live-"+filepath.Base(c.RunDir))
	for _, top := range []string{"/usr", "/etc", "/srv"} {
		v := rootspec.Overlay{Target: top, Lowers: []string{top}, Upper: live + top + "/upper", Work: live + top + "/work"}
		if top == "/srv" {
			v.Lowers, v.Wrap = []string{filepath.Join(o.dir, "mask"), o.base}, true
		}
		for _, d := range []string{v.Upper, v.Work} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		c.Spec.Overlays = append(c.Spec.Overlays, v)
	}
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		if to, err := os.Readlink("/" + l); err == nil {
			c.Spec.Skeleton = append(c.Spec.Skeleton, rootspec.Entry{Path: "/" + l, Link: to})
		}
	}
	c.Spec.Hide = []string{"/srv/store"}
	for _, p := range []string{"/srv/kept/deep/er/dir", "/srv/kept/lone"} {
		c.Access.ReadOnly = append(c.Access.ReadOnly, rootspec.Place{Said: p, At: []string{p}})
	}
	c.Access.Mounts = []rootspec.HostMount{{From: filepath.Join(o.base, "host"), To: "/srv/kept/mounted"}}
	for _, p := range o.facts.Decoys { // with the mode of a program: executing it opens it too
		c.Access.Decoys = append(c.Access.Decoys,
			rootspec.Decoy{At: p, Text: []byte(escape.DecoyText + "\n"), Mode: 0o755, ModTime: time.Unix(1e9, 0)})
	}
	bin := filepath.Join(live, "usr/upper/local/bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	passwd := "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/:/bin/sh\n"
	if err := os.WriteFile(filepath.Join(live, "etc/upper/passwd"), []byte(passwd), 0o644); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{escape.Argv0: self,
		"self": []byte("#!/proc/self/exe " + selfWord + "\n")} {
		if err := os.WriteFile(filepath.Join(bin, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b, e, err := box.Start(t.Context(), programtest.Programs(), c)
	if s.tier == plan.TierGvisor && fault.Is(err, fault.Unsupported) {
		t.Skipf("needs gvisor: %v", err)
	}
	if err != nil {
		log, _ := os.ReadFile(c.RunDir + "/keeper.log")
		t.Fatalf("start: %v\n%s", err, log)
	}
	t.Cleanup(func() {
		if err := b.Stop(context.Background(), 0); err != nil {
			t.Error(err)
		}
		b.Close()
		if log, _ := os.ReadFile(c.RunDir + "/keeper.log"); len(log) > 0 {
			t.Logf("keeper.log: %s", log)
		}
	})
	for _, it := range e.Items {
		if it.State != plan.On {
			t.Logf("%s is %s: %s", it.Name, it.State, it.Detail)
		}
	}
	return b
}

// run runs a command and returns its output and its exit.
func run(t *testing.T, b *box.Box, req wire.ExecRequest) (string, wire.Exit) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := b.Exec(ctx, req)
	if err != nil {
		t.Fatalf("exec: %v", err)
	}
	defer s.Close()
	_ = s.SetDeadline(time.Now().Add(2 * time.Minute))
	var out bytes.Buffer
	for {
		ft, p, err := wire.ReadFrame(s, nil)
		if err != nil {
			t.Fatalf("exec: %v\n%s", err, out.String())
		}
		switch ft {
		case wire.FrameStdout, wire.FrameStderr:
			out.Write(p)
		case wire.FrameFailed:
			t.Fatalf("exec: %s", p)
		case wire.FrameExit:
			var e wire.Exit
			if err := json.Unmarshal(p, &e); err != nil {
				t.Fatal(err)
			}
			return out.String(), e
		}
	}
}

func TestEscape(t *testing.T) { tryAll(t, sandboxes()) }

// tryAll runs the corpus in each of the sandboxes.
func tryAll(t *testing.T, all []sandbox) {
	secret := "secret-" + random(t)
	t.Setenv("ESCAPE_IN_THE_DAEMON", secret) // keepers are started with it in their environment
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			if s.tier == plan.TierGvisor {
				t.Parallel() // its kernels mostly wait for each other
			}
			o := plant(t, secret)
			if s.gate {
				o.plantGate(t)
				o.facts.Gate.Asks = s.asks
			}
			t.Cleanup(func() {
				for _, d := range []string{o.base, o.inTmp} {
					if out, err := exec.Command("sh", "-c", `chmod -R u+rwx "$0" 2>/dev/null; rm -rf "$0"`, d).
						CombinedOutput(); err != nil {
						t.Logf("clean up: %v %s", err, out)
					}
				}
			})
			b := start(t, o, s)
			keeper := filepath.Join(o.dir, "run-"+strings.ReplaceAll(s.name, "/", "-"), "keeper.sock")
			if _, err := os.Stat(keeper); err != nil {
				t.Fatal(err)
			}
			inside := strings.Replace(keeper, o.base, "/srv", 1)
			o.facts.Sockets = append(o.facts.Sockets, keeper, inside)
			o.facts.NetHost, o.facts.User, o.facts.Own = s.net == plan.NetHost, s.user, s.tier == plan.TierGvisor
			facts, err := json.Marshal(o.facts)
			if err != nil {
				t.Fatal(err)
			}
			// The processes of other users cannot be inspected.
			if o.facts.Own && (s.user == plan.UserRoot || os.Getenv(realID) == "") {
				t.Run("what-is-outside", func(t *testing.T) { confinedOutside(t, filepath.Dir(keeper)) })
			}
			told := newEvidence(t, filepath.Dir(keeper))
			// The secret is passed in argv, which /proc shows to every process. The attacks that search for it must not
			// find it there, so they do not read cmdline.
			for _, a := range escape.Attacks {
				if a.Applies != nil && !a.Applies(o.facts) {
					continue
				}
				if s.asks && !strings.HasPrefix(a.Name, "gate-") { // all other attacks are the same without asking
					continue
				}
				t.Run(a.Name, func(t *testing.T) {
					before := started(t, b, 0, nil)
					exec := "x-" + a.Name
					out, exit := run(t, b, wire.ExecRequest{ID: exec, Cmd: []string{attacker, a.Name, string(facts)}, Dir: "/"})
					switch {
					case exit.Code == escape.Refused:
					case a.Killed && exit.Signal != "":
					case o.facts.Own && a.Emulated != "" && exit.Code == escape.Emulated:
					default:
						t.Errorf("%s: exit %d %s\n%s", a.What, exit.Code, exit.Signal, out)
					}
					if a.Touches && len(escape.Touched(out)) == 0 {
						t.Errorf("the attack read no honeytoken\n%s", out)
					}
					for _, r := range a.Records(o.facts, exec, out, exit.Signal) {
						told.has(t, r)
					}
					if a.Starts != nil {
						recorded(t, b, before, a.Starts)
					}
				})
			}
			t.Run("interpreter-is-the-binary", func(t *testing.T) {
				interpreted(t, b)
			})
			// The box must still work. If an attacker has broken it, all later attacks fail for that reason.
			if out, exit := run(t, b, wire.ExecRequest{Cmd: []string{"/bin/echo", "alive"}, Dir: "/"}); exit.Code != 0 ||
				out != "alive\n" {
				t.Errorf("the sandbox no longer works: %d %q", exit.Code, out)
			}
			o.unharmed(t)
		})
	}
}

// started calls see for every program that was started after an event, and returns the last event.
func started(t *testing.T, b *box.Box, after uint64, see func(*wire.StartedProgram)) uint64 {
	t.Helper()
	for {
		p, err := b.ProgramsNow(t.Context(), after, after)
		if err != nil || after > 0 && p.Dropped > 0 {
			t.Fatalf("after %d: %d dropped, %v", after, p.Dropped, err)
		}
		for _, e := range p.Events {
			if e.Began != nil && see != nil {
				see(e.Began)
			}
		}
		if after = p.Next; len(p.Events) == 0 {
			return after
		}
	}
}

// recorded checks that the programs of an attack were recorded.
func recorded(t *testing.T, b *box.Box, after uint64, names []string) {
	t.Helper()
	seen := map[string]int{}
	started(t, b, after, func(p *wire.StartedProgram) {
		if len(p.Args) > 0 {
			seen[p.Args[0]]++
		}
	})
	for _, n := range names {
		if seen[n] == 0 || n == "unseen-crowd" && seen[n] != 64 {
			t.Errorf("%q is recorded %d times", n, seen[n])
		}
	}
}

// TestCorpus_SucceedsUnconfined runs attacks unconfined and checks that the harness detects their success.
func TestCorpus_SucceedsUnconfined(t *testing.T) {
	o := plant(t, "secret-"+random(t))
	o.facts.Tasks = 20 // this limit is not enforced
	t.Cleanup(func() { os.RemoveAll(o.base); os.RemoveAll(o.inTmp) })
	facts, err := json.Marshal(o.facts)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"read-outside", "environments", "unix-sockets", "abstract-socket", "loopback",
		"shared-memory", "socket-families", "capabilities", "host-words", "race-the-root", "exhaust-tasks"} {
		var out bytes.Buffer
		cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{escape.Argv0, name, string(facts)}, Stdout: &out}
		if err := cmd.Run(); err != nil {
			t.Errorf("%s failed although it ran unconfined: %v %s", name, err, out.String())
		}
	}
	if o.connections.Load() == 0 {
		t.Error("no connection was noticed")
	}
}

// TestAttacks_DeclareTheirRecords checks that each attack states what is recorded of it, or why nothing is.
func TestAttacks_DeclareTheirRecords(t *testing.T) {
	t.Parallel()
	for _, a := range escape.Attacks {
		leaves := a.Touches || a.Told != "" || a.Because != "" || len(a.Refused) > 0 || a.Killed || a.Starts != nil
		if leaves == (a.None != "") {
			t.Errorf("%s leaves %q, or none: %q", a.Name, a.Recorded(), a.None)
		}
	}
}

// TestThreatModel_ListsAttacks checks that the table in docs/THREAT_MODEL.md is generated from this corpus.
func TestThreatModel_ListsAttacks(t *testing.T) {
	const path, mark = "../../../docs/THREAT_MODEL.md", "TestThreatModel_ListsAttacks -->\n"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, got, ok := strings.Cut(string(b), mark)
	if !ok {
		t.Fatalf("%s has no table", path)
	}
	want := "\n| attack | what it tries | what is recorded of it |\n|---|---|---|\n"
	for _, a := range escape.Attacks {
		want += fmt.Sprintf("| `%s` | %s | %s |\n", a.Name, strings.ReplaceAll(a.What, "|", "\\|"), a.Recorded())
	}
	given := "\n| in tier `gvisor` | is given, and nothing of the host |\n|---|---|\n"
	for _, a := range escape.Attacks {
		if a.Emulated != "" {
			given += fmt.Sprintf("| `%s` | %s |\n", a.Name, a.Emulated)
		}
	}
	want += "| `interpreter-is-the-binary` | a script whose interpreter is `/proc/self/exe`, the program of init; " +
		"another process holds it, and writes to it when it has ended | none: " + escape.Files + " |\n" + given
	want += "\n| what the set-up finds at a path that it touches | the protection that it meets |\n|---|---|\n"
	for _, c := range escape.Classes {
		want += fmt.Sprintf("| %s | %s |\n", c.What, c.Meets)
	}
	if got == want {
		return
	}
	if os.Getenv("COPPICE_UPDATE") == "" {
		t.Fatalf("%s differs from the corpus; regenerate it: COPPICE_UPDATE=1 go test -run ThreatModel "+
			"./internal/boxtest/escape", path)
	}
	if err := os.WriteFile(path, []byte(head+mark+want), 0o644); err != nil {
		t.Fatal(err)
	}
}

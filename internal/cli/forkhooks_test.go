//go:build linux

package cli_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

// hooked is a home with a sandbox in tier gvisor whose forks go on from memory, and a server
// outside that its policy allows.
type hooked struct {
	*desk
	out *listener
}

// newHooked makes it, with flags of create.
func newHooked(t *testing.T, flags ...string) *hooked {
	t.Helper()
	if !static {
		t.Skip("needs plain-build: a kernel is started in a root with the static binary alone")
	}
	dir, err := os.MkdirTemp("", "hooked")
	if err != nil {
		t.Fatal(err)
	}
	h := &hooked{desk: &desk{t: t, dir: filepath.Join(dir, "store")}}
	h.env = append(os.Environ(), "COPPICE_HOME="+h.dir, "COPPICE_IDLE=60s", "LANG=C.UTF-8")
	t.Cleanup(func() {
		h.try(append([]string{"rm", "--force"}, strings.Fields(h.run("ls", "-q"))...)...)
		h.try("serve", "--stop")
		h.killDaemon()
		_ = exec.Command("chmod", "-R", "u+rwx", dir).Run() // what the daemon was root over
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	h.out = listenOutside(t)
	policy := filepath.Join(dir, "policy.yaml")
	addr := h.out.Addr().(*net.TCPAddr)
	text := fmt.Sprintf("version: 1\nnetwork:\n  allow:\n    - {cidr: %s, protocol: tcp, ports: [%d]}\n",
		addr.IP, addr.Port)
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "rootfs")
	if err := makeRootfs(root); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(root+hooksDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(root+hooksDir+"/00-pipe-below", 0o755); err != nil {
		t.Fatal(err)
	}
	h.run(append([]string{"create", sandbox, "--from", root, "--no-repo", "--tier", "gvisor", "--policy", policy},
		flags...)...)
	// A command that has ended leaves it running: no limit of time is about it.
	h.run("exec", sandbox, "--", "sh", "-c", "(while :; do sleep 1; done) >/dev/null 2>&1 &")
	return h
}

const hooksDir = "/etc/coppice/on-fork.d"

// listener hears who connects from where, on an address of this host that is not its loopback.
type listener struct {
	net.Listener
	own sync.WaitGroup

	mu    sync.Mutex
	heard map[string]bool // guarded by mu: the lines that came
}

func listenOutside(t *testing.T) *listener {
	t.Helper()
	// No packet is sent: the kernel tells from which address it would send.
	c, err := net.Dial("udp", "192.0.2.1:9")
	if err != nil {
		t.Skip("needs a network: this host has no address but loopback's")
	}
	c.Close()
	l := &listener{heard: map[string]bool{}}
	if l.Listener, err = net.Listen("tcp", net.JoinHostPort(c.LocalAddr().(*net.UDPAddr).IP.String(), "0")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); l.own.Wait() })
	l.own.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			l.own.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				line, _ := bufio.NewReader(c).ReadString('\n')
				l.mu.Lock()
				l.heard[strings.TrimSpace(line)] = true
				l.mu.Unlock()
				_, _ = c.Write([]byte("heard\n"))
			})
		}
	})
	return l
}

func (l *listener) hears(line string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard[line]
}

// calls is a line of a shell that says a word to the server, and waits until that has heard it.
func (h *hooked) calls(word string) string {
	a := h.out.Addr().(*net.TCPAddr)
	return fmt.Sprintf("exec bash -c 'exec 3<>/dev/tcp/%s/%d && echo %s >&3 && read answer <&3'", a.IP, a.Port, word)
}

// told runs coppice and gives all that it printed, which has to be fit for a terminal, and its
// exit code.
func (h *hooked) told(args ...string) (string, int) {
	h.t.Helper()
	cmd := exec.Command("coppice", args...)
	cmd.Env = h.env
	out, err := cmd.CombinedOutput()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		h.t.Error(err)
		return "", -1
	}
	for _, r := range string(out) {
		if r != '\n' && unicode.IsControl(r) || r == unicode.ReplacementChar {
			h.t.Errorf("coppice %q prints %q: %q", args, r, out)
			break
		}
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// plant gives the sandbox other hooks, by a script that is run where they are to be.
func (h *hooked) plant(script string) {
	h.t.Helper()
	h.run("exec", sandbox, "--", "sh", "-ec", "rm -rf "+hooksDir+" /work/ran; mkdir -p "+hooksDir+"; cd "+hooksDir+"\n"+
		// hook NAME makes one of what it reads.
		"hook() { { echo '#!/bin/sh'; cat; } >\"$1\"; chmod 755 \"$1\"; }\n"+script)
}

// quarantine tells why a fork is quarantined; nil: it is not.
func (h *hooked) quarantine(name string) *wire.Quarantine {
	h.t.Helper()
	var st wire.StatusResult
	if err := json.Unmarshal([]byte(h.run("status", name, "--json")), &st); err != nil {
		h.t.Fatal(err)
	}
	return st.Sandbox.Quarantine
}

// apart demands that a fork is quarantined for a reason, that this is told wherever it is asked
// for, and that nothing gets out of it.
func (h *hooked) apart(name, step, reason string) {
	h.t.Helper()
	q := h.quarantine(name)
	if q == nil || q.Step != step || !strings.Contains(q.Reason, reason) || len(q.Reason) > 8<<10 {
		h.t.Fatalf("%s: %+v, want %q at %s", name, q, reason, step)
	}
	for verb, shown := range map[string]string{"status": reason, "ledger show": reason, "log": ""} {
		if out, code := h.told(append(strings.Fields(verb), name)...); code != 0 || !strings.Contains(out, tty.Clean(shown)) {
			h.t.Errorf("coppice %s: exit code %d, %q, want %q", verb, code, out, shown)
		}
	}
	h.silent(name)
}

// silent demands that nothing gets out of a fork, though its policy allows it.
func (h *hooked) silent(name string) {
	h.t.Helper()
	if out, code := h.told("exec", name, "--timeout", "1s", "--", "sh", "-c", h.calls(name)); code != 124 {
		h.t.Errorf("%s gets out: exit code %d, %q", name, code, out)
	}
	if h.out.hears(name) {
		h.t.Errorf("%s is heard outside", name)
	}
}

// heard demands that a sandbox gets out.
func (h *hooked) heard(name string) {
	h.t.Helper()
	if out, code := h.told("exec", name, "--timeout", "50s", "--", "sh", "-c", h.calls(name+"-open")); code != 0 ||
		!h.out.hears(name+"-open") {
		h.t.Errorf("%s is not heard: exit code %d, %q", name, code, out)
	}
}

// fork forks the sandbox with memory, and gives what was told.
func (h *hooked) fork(name string) string {
	h.t.Helper()
	out, code := h.told("fork", sandbox, name, "--memory")
	if code != 0 {
		h.t.Fatalf("fork: exit code %d, %q", code, out)
	}
	return out
}

// TestForkHooks_FailureQuarantines checks that a fork whose hook fails stays quarantined, with
// the reason. It can be tried again, removed, or used for its files only.
func TestForkHooks_FailureQuarantines(t *testing.T) {
	t.Parallel()
	h := newHooked(t)
	h.heard(sandbox)
	for i, c := range []struct{ name, plant, step, reason string }{
		{"fails", "hook 05-first <<'!'\necho first >>/work/ran\n!\nhook 10-hook <<'!'\necho it failed >&2; exit " +
			"3\n!\nhook 20-last <<'!'\necho last >>/work/ran\n!", "hook",
			hooksDir + "/10-hook failed with exit code 3: it failed"},
		{"calls out", "hook 10 <<'!'\necho calls; (" + h.calls("hook") + ") & sleep 0.3; kill -9 $!; exit 1\n!", "hook",
			"10 failed with exit code 1: calls"},
		{"has no interpreter", "printf '#!/no/such\\n' >10; chmod 755 10", "hook", "10 failed with exit code 127: "},
		{"is no program", "printf 'MZ\\0\\1' >10; chmod 755 10", "hook", "10 failed with exit code 126: "},
		{"leaves a child that holds its output", "hook 10 <<'!'\necho parent; (while :; do sleep 1; done) & exit 4\n!",
			"hook", "10 failed with exit code 4: parent"},
		{"writes to the terminal", "hook 10 <<'!'\nprintf '\\033]0;owned\\007\\033[2J\\302\\2332J\\377'; exit 1\n!", "hook",
			"\x1b]0;owned\a\x1b[2J"},
		{"is called so that it would", "hook \"$(printf '10\\033[2J\\nx')\" <<'!'\nexit 1\n!", "hook",
			"10\x1b[2J\nx failed with exit code 1: no output"},
		{"is called like a flag", "hook ./--help <<'!'\nexit 7\n!", "hook", "--help failed with exit code 7"},
		{"there are more than 64", "for n in $(seq 100 164); do hook $n <<'!'\necho ran >>/work/ran\n!\ndone", "hooks",
			"too many programs in " + hooksDir + ": 65; the limit is 64"},
		{"there is no directory of them", "cd /; rm -r " + hooksDir + "; echo no >" + hooksDir, "hooks", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &hooked{desk: &desk{t: t, env: h.env, dir: h.dir}, out: h.out}
			h.plant(c.plant)
			name := fmt.Sprint("copy", i)
			if out := h.fork(name); !strings.Contains(out, name+" is quarantined: ") ||
				!strings.Contains(out, tty.Clean(c.reason)) {
				t.Errorf("fork: %q", out)
			}
			h.apart(name, c.step, c.reason)
			if got := h.ran(name); got != "" && got != "first\n" {
				t.Errorf("after what failed, %q ran", got)
			}
			refused := 4           // conflict
			if c.step == "hooks" { // what is in the directory is invalid
				refused = 2
			}
			if out, code := h.told("process", "resume", name); code != refused || !strings.Contains(out, tty.Clean(c.reason)) {
				t.Errorf("resume: exit code %d, %q", code, out)
			}
			switch i % 3 { // what a person may do
			case 0:
				h.run("exec", name, "--", "rm", "-rf", hooksDir)
				h.run("process", "resume", name)
			case 1:
				h.run("rewind", "--files-only", name, "HEAD")
			case 2:
				h.run("rm", "--force", name)
				return
			}
			if q := h.quarantine(name); q != nil {
				t.Errorf("it is quarantined still: %+v", q)
			}
			h.heard(name)
			h.run("rm", "--force", name)
		})
	}
	if h.out.hears("hook") {
		t.Error("a hook was heard outside")
	}
	h.run("system", "verify")
}

// ran gives what hooks have written of themselves.
func (h *hooked) ran(name string) string {
	h.t.Helper()
	return h.run("exec", name, "--", "sh", "-c", "cat /work/ran 2>/dev/null || :")
}

// TestForkHooks_IgnoreNonExecutables checks that only regular, executable files are hooks,
// that there may be 64 of them, and that processes that a hook leaves behind keep running.
func TestForkHooks_IgnoreNonExecutables(t *testing.T) {
	t.Parallel()
	h := newHooked(t)
	h.fork("base") // a pipe is among them, which is there outside
	h.heard("base")
	for name, plant := range map[string]string{
		"kinds": `mkdir -m 755 10-directory; ln -s /no/such 20-dangling; ln -s /bin/false 30-link; ln -s 40-loop 40-loop; mkfifo -m 755 50-pipe
			printf '#!/bin/sh\nexit 1\n' >60-not-executable; hook 10-directory/hook <<'!'
exit 1
!
hook 70-hook <<'!'
(while :; do sleep 1; done) &
echo hook >>/work/ran
!`,
		"below":   "cd /; rm -r " + hooksDir + "; ln -s /no/such " + hooksDir,
		"nothing": "cd /; rm -r " + hooksDir,
		"64": `for n in $(seq 100 163); do hook $n <<'!'
echo ${0##*/} >>/work/ran
!
done`,
	} {
		h.plant(plant)
		if out := h.fork(name); strings.Contains(out, "quarantined") {
			t.Errorf("%s: %q", name, out)
		}
		h.heard(name)
		want := ""
		switch name {
		case "kinds":
			want = "hook\n"
			if out := h.run("process", "ls", name); !strings.Contains(out, hooksDir+"/70-hook") {
				t.Errorf("what the hook left is gone: %s", out)
			}
		case "64":
			for n := range 64 {
				want += fmt.Sprintln(100 + n)
			}
		}
		if got := h.ran(name); got != want {
			t.Errorf("%s: %q ran, want %q", name, got, want)
		}
	}
}

// TestForkHooks_KillHanging checks that a hanging hook is killed, with all that it has started,
// at the latest at the sandbox's own time limit for a command. Meanwhile it blocks nothing else.
func TestForkHooks_KillHanging(t *testing.T) {
	t.Parallel()
	h := newHooked(t, "--limit", "time=5s")
	const ended = hooksDir + "/10 was killed: it exceeded the sandbox's limit for a command, time=5s"
	// Forks of one moment behave as they are called: each has its host name by then.
	h.plant(`hook 10 <<'!'
read name </proc/sys/kernel/hostname
case $name in
hangs) while :; do sleep 1; done ;;
heedless) trap '' TERM HUP INT; while :; do sleep 1; done ;;
children) (trap '' TERM; while :; do sleep 1; done) & (trap '' TERM; while :; do sleep 1; done) & wait ;;
endless) yes | tr '\n' 'y' ;;
esac
!`)
	names := []string{"hangs", "heedless", "children", "endless"}
	over := make(chan string, 1)
	go func() {
		out, _ := h.told(append([]string{"fork", sandbox, "--memory"}, names...)...)
		over <- out
	}()
	// Meanwhile all forks stay quarantined, and the parent continues.
	h.eventually("hangs", "ls", "-q")
	for _, n := range names {
		if q := h.quarantine(n); q == nil {
			t.Errorf("%s is not quarantined while its hook runs", n)
		}
	}
	h.heard(sandbox)
	out := <-over
	for _, n := range names {
		if !strings.Contains(out, n+" is quarantined: "+ended) {
			t.Errorf("of %s the fork says %q", n, out)
		}
		h.apart(n, "hook", ended)
		if out := h.run("process", "ls", n); strings.Contains(out, hooksDir) || strings.Contains(out, "yes") {
			t.Errorf("%s: what the hook started runs on: %s", n, out)
		}
	}
	h.run("exec", "heedless", "--", "rm", "-r", hooksDir)
	h.run("process", "resume", "heedless")
	h.heard("heedless")
	h.run("rewind", "--files-only", "children", "HEAD")
	h.heard("children")

	// It can be removed while a hook hangs.
	h.plant("hook 10 <<'!'\ntouch /work/begun; while :; do sleep 1; done\n!")
	go func() {
		out, _ := h.told("fork", sandbox, "removed", "--memory")
		over <- out
	}()
	h.eventually("removed", "ls", "-q")
	h.eventually("on-fork.d/10", "process", "ls", "removed")
	h.run("rm", "--force", "removed")
	if out := <-over; !strings.Contains(out, "removed") {
		t.Errorf("of a fork that was removed meanwhile, fork says %q", out)
	}
	if _, err := h.try("status", "removed"); err == nil {
		t.Error("it is there again")
	}
	h.run("system", "verify")
}

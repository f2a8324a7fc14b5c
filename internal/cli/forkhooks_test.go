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

// hooked is a home with a sandbox in tier gvisor whose forks continue from memory, and a server outside that its
// policy allows.
type hooked struct {
	*desk
	out *listener
}

// newHooked creates a hooked home. flags are for create.
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
		_ = exec.Command("chmod", "-R", "u+rwx", dir).Run() // files that the daemon's root owned
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
	// After the command exits, the sandbox keeps running: no time limit applies to a background process.
	h.run("exec", sandbox, "--", "sh", "-c", "(while :; do sleep 1; done) >/dev/null 2>&1 &")
	return h
}

const hooksDir = "/etc/coppice/on-fork.d"

// listener records the lines that clients send, on an address of this host other than loopback.
type listener struct {
	net.Listener
	own sync.WaitGroup

	mu    sync.Mutex
	heard map[string]bool // guarded by mu: the received lines
}

func listenOutside(t *testing.T) *listener {
	t.Helper()
	// No packet is sent: the kernel selects the source address.
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

// calls returns a shell command that sends a word to the server, and waits for its answer.
func (h *hooked) calls(word string) string {
	a := h.out.Addr().(*net.TCPAddr)
	return fmt.Sprintf("exec bash -c 'exec 3<>/dev/tcp/%s/%d && echo %s >&3 && read answer <&3'", a.IP, a.Port, word)
}

// told runs coppice, and returns its whole output and its exit code. The output must not contain control characters.
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

// plant replaces the hooks of the sandbox. The script runs in their directory.
func (h *hooked) plant(script string) {
	h.t.Helper()
	h.run("exec", sandbox, "--", "sh", "-ec", "rm -rf "+hooksDir+" /work/ran; mkdir -p "+hooksDir+"; cd "+hooksDir+"\n"+
		// hook NAME creates a hook from stdin.
		"hook() { { echo '#!/bin/sh'; cat; } >\"$1\"; chmod 755 \"$1\"; }\n"+script)
}

// quarantine returns why a fork is quarantined; nil if it is not.
func (h *hooked) quarantine(name string) *wire.Quarantine {
	h.t.Helper()
	var st wire.StatusResult
	if err := json.Unmarshal([]byte(h.run("status", name, "--json")), &st); err != nil {
		h.t.Fatal(err)
	}
	return st.Sandbox.Quarantine
}

// apart verifies that a fork is quarantined for a reason, that all commands report the reason, and that the fork has
// no network access.
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

// silent verifies that a fork has no network access, although its policy allows it.
func (h *hooked) silent(name string) {
	h.t.Helper()
	if out, code := h.told("exec", name, "--timeout", "1s", "--", "sh", "-c", h.calls(name)); code != 124 {
		h.t.Errorf("%s is not blocked: exit code %d, %q", name, code, out)
	}
	if h.out.hears(name) {
		h.t.Errorf("%s reached the server", name)
	}
}

// heard verifies that a sandbox can reach the server.
func (h *hooked) heard(name string) {
	h.t.Helper()
	if out, code := h.told("exec", name, "--timeout", "50s", "--", "sh", "-c", h.calls(name+"-open")); code != 0 ||
		!h.out.hears(name+"-open") {
		h.t.Errorf("%s did not reach the server: exit code %d, %q", name, code, out)
	}
}

// fork forks the sandbox with memory, and returns the output.
func (h *hooked) fork(name string) string {
	h.t.Helper()
	out, code := h.told("fork", sandbox, name, "--memory")
	if code != 0 {
		h.t.Fatalf("fork: exit code %d, %q", code, out)
	}
	return out
}

// TestForkHooks_FailureQuarantines checks that a fork whose hook fails stays quarantined, with the reason. A user can
// resume it again, remove it, or rewind only its files.
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
		{"there are more than 16", "for n in $(seq 100 116); do hook $n <<'!'\necho ran >>/work/ran\n!\ndone", "hooks",
			"too many programs in " + hooksDir + ": 17; the limit is 16"},
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
				t.Errorf("after the failed hook, %q ran", got)
			}
			refused := 4           // conflict
			if c.step == "hooks" { // invalid: the content of the directory
				refused = 2
			}
			if out, code := h.told("process", "resume", name); code != refused || !strings.Contains(out, tty.Clean(c.reason)) {
				t.Errorf("resume: exit code %d, %q", code, out)
			}
			switch i % 3 { // ways to end the quarantine
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
				t.Errorf("it is still quarantined: %+v", q)
			}
			h.heard(name)
			h.run("rm", "--force", name)
		})
	}
	if h.out.hears("hook") {
		t.Error("a hook reached the server")
	}
	h.run("system", "verify")
}

// ran returns what the hooks wrote to their log.
func (h *hooked) ran(name string) string {
	h.t.Helper()
	return h.run("exec", name, "--", "sh", "-c", "cat /work/ran 2>/dev/null || :")
}

// TestForkHooks_IgnoreNonExecutables checks that only regular, executable files are hooks, that 16 of them are
// allowed, and that background processes of a hook keep running.
func TestForkHooks_IgnoreNonExecutables(t *testing.T) {
	t.Parallel()
	h := newHooked(t)
	h.fork("base") // the base has a pipe among the hooks
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
		"16": `for n in $(seq 100 115); do hook $n <<'!'
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
				t.Errorf("the background process of the hook is gone: %s", out)
			}
		case "16":
			for n := range 16 {
				want += fmt.Sprintln(100 + n)
			}
		}
		if got := h.ran(name); got != want {
			t.Errorf("%s: %q ran, want %q", name, got, want)
		}
	}
}

// TestForkHooks_KillHanging checks that a hanging hook is killed with all its processes, at the latest at the
// sandbox's time limit for a command, and that it blocks nothing else meanwhile.
func TestForkHooks_KillHanging(t *testing.T) {
	t.Parallel()
	h := newHooked(t, "--limit", "time=5s")
	const ended = hooksDir + "/10 was killed: it exceeded the sandbox's limit for a command, time=5s"
	// The hooks of forks that are created together differ by host name, which is already set when they run.
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
			t.Errorf("fork printed %[2]q, without the quarantine of %[1]s", n, out)
		}
		h.apart(n, "hook", ended)
		if out := h.run("process", "ls", n); strings.Contains(out, hooksDir) || strings.Contains(out, "yes") {
			t.Errorf("%s: processes of the hook are still running: %s", n, out)
		}
	}
	h.run("exec", "heedless", "--", "rm", "-r", hooksDir)
	h.run("process", "resume", "heedless")
	h.heard("heedless")
	h.run("rewind", "--files-only", "children", "HEAD")
	h.heard("children")

	// A fork can be removed while its hook hangs.
	h.plant("hook 10 <<'!'\ntouch /work/begun; while :; do sleep 1; done\n!")
	go func() {
		out, _ := h.told("fork", sandbox, "removed", "--memory")
		over <- out
	}()
	h.eventually("removed", "ls", "-q")
	h.eventually("on-fork.d/10", "process", "ls", "removed")
	h.run("rm", "--force", "removed")
	if out := <-over; !strings.Contains(out, "removed") {
		t.Errorf("fork printed %q, without the removed fork", out)
	}
	if _, err := h.try("status", "removed"); err == nil {
		t.Error("the removed fork exists")
	}
	h.run("system", "verify")
}

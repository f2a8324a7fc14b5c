//go:build linux && (amd64 || arm64)

package box_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/control"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
)

// outside is a server on an address of this host other than loopback. It answers every connection with a line and
// closes it.
func outside(t *testing.T) netip.AddrPort {
	t.Helper()
	// No packet is sent. The kernel only selects the source address.
	c, err := net.Dial("udp", "192.0.2.1:9")
	if err != nil {
		t.Skip("needs a network: this host has no address but loopback's")
	}
	c.Close()
	l, err := net.Listen("tcp", netip.AddrPortFrom(c.LocalAddr().(*net.UDPAddr).AddrPort().Addr(), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "from outside\n")
			c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// told waits until the journal of b has an event that matches fits, and returns all events.
func told(t *testing.T, b *boxtest.Box, fits func(wire.NetEvent) bool) []wire.NetEvent {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		evs, err := journal.Read(journal.Place{Dir: b.Config.Journal}, journal.Query{})
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(evs, fits) {
			return evs
		}
		if time.Now().After(end) {
			t.Fatalf("no matching event in %+v", evs)
		}
	}
}

const connect = `exec 3<>/dev/tcp/%s/%d && cat <&3`

// reach connects from inside b and returns the answer. The timeout matters: a connection that began while an interface
// went away waits for minutes.
func reach(t *testing.T, b *boxtest.Box, at netip.AddrPort) (string, bool) {
	t.Helper()
	r := b.Do(t,
		wire.ExecRequest{Cmd: []string{"bash", "-c", fmt.Sprintf(connect, at.Addr(), at.Port())}, TimeoutMS: 5000})
	return r.Stdout, r.Exit.Code == 0
}

// TestGate checks that a box reaches through its gate what its policy allows, and nothing else, while the policy
// changes.
func TestGate(t *testing.T) {
	t.Parallel()
	at := outside(t)
	b := (boxtest.Tier{Config: supervised}).Start(t)
	if b.Enforced.State("net") != plan.On || b.Enforced.State("programs") != plan.On {
		t.Errorf("%+v", b.Enforced)
	}
	denied := func(e wire.NetEvent) bool {
		return e.Kind == wire.NetDeny && e.Addr == at.Addr().String() && e.Port == int(at.Port()) &&
			e.Policy == b.Config.Phases[0].Digest
	}
	if got, ok := reach(t, b, at); ok {
		t.Errorf("connected without an allow rule: %q", got)
	}
	told(t, b, denied)

	wide := phase(t, time.Time{}, at.String())
	if err := b.SetPolicy(t.Context(), []plan.Phase{wide}); err != nil {
		t.Fatal(err)
	}
	if got, ok := reach(t, b, at); !ok || got != "from outside\n" {
		t.Errorf("an allowed destination: %q", got)
	}
	told(t, b, func(e wire.NetEvent) bool {
		return e.Kind == wire.NetEnd && e.In == 13 && e.Port == int(at.Port()) && e.Policy == wide.Digest &&
			strings.Contains(e.Rule, at.String())
	})
	if n, err := b.Net(t.Context()); err != nil || n.In < 13 || n.EventsLost != 0 {
		t.Errorf("%+v, %v", n, err)
	}

	// A grant expires on time, and its connections are cut.
	soon := wide
	soon.Until = time.Now().Add(500 * time.Millisecond)
	if err := b.SetPolicy(t.Context(), []plan.Phase{soon, b.Config.Phases[0]}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, ok := reach(t, b, at); !ok {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the grant does not expire")
		}
	}
	if time.Now().Before(soon.Until) {
		t.Error("the grant ended before its time")
	}
	told(t, b, func(e wire.NetEvent) bool { return e.Kind == wire.NetPolicy && e.Policy == b.Config.Phases[0].Digest })

	forged := wide
	forged.Digest = b.Config.Phases[0].Digest
	if err := b.SetPolicy(t.Context(), []plan.Phase{forged}); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a policy that does not match its digest: %v", err)
	}
	if _, ok := reach(t, b, at); ok {
		t.Error("a refused policy is in force")
	}
}

// TestGateNames resolves names from inside.
func TestGateNames(t *testing.T) {
	t.Parallel()
	b := (boxtest.Tier{Config: supervised}).Start(t)
	if r := b.Sh(t, "cat /etc/resolv.conf"); !strings.HasPrefix(r.Stdout, "nameserver 192.0.0.1\n") {
		t.Errorf("resolv.conf is %+v", r)
	}
	if r := b.Sh(t, "getent ahosts secrets.example"); r.Exit.Code == 0 {
		t.Errorf("%+v", r)
	}
	told(t, b, func(e wire.NetEvent) bool {
		return e.Kind == wire.NetDeny && e.Name == "secrets.example" && e.Hint != ""
	})
}

// TestGateExit_LeavesBoxOffline kills the gate: the sandbox continues to run and can reach
// nothing. It also checks the privileges of the gate.
func TestGateExit_LeavesBoxOffline(t *testing.T) {
	t.Parallel()
	at := outside(t)
	b := (boxtest.Tier{Config: supervised}).
		Start(t, func(c *plan.Config) { c.Phases = []plan.Phase{phase(t, time.Time{}, at.String())} })
	if got, ok := reach(t, b, at); !ok {
		t.Fatalf("%q", got)
	}
	gate := gateOf(t, b)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", gate))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000",
		"CapAmb:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), line) {
			t.Errorf("the status of the gate lacks %q: %s", line, status)
		}
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", gate))
	if err != nil || !regexp.MustCompile(`Max data size +1073741824 +1073741824 `).Match(limits) {
		t.Errorf("the gate's memory is not limited: %v %s", err, limits)
	}
	if err := syscall.Kill(gate, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	told(t, b, func(e wire.NetEvent) bool { return strings.Contains(e.Reason, "the gate has exited") })
	if got, ok := reach(t, b, at); ok {
		t.Errorf("connected without a gate: %q", got)
	}
	if _, err := b.Net(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
	if r := b.Sh(t, "echo alive"); r.Stdout != "alive\n" {
		t.Errorf("%+v", r)
	}
}

// TestGate_EndsWithMonitor kills the monitor and waits for the gate to exit.
func TestGate_EndsWithMonitor(t *testing.T) {
	t.Parallel()
	b := (boxtest.Tier{Config: supervised}).Start(t)
	gate := gateOf(t, b)
	s, err := b.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		st, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", gate))
		if err != nil || strings.Contains(string(st), ") Z ") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the gate did not exit")
		}
	}
}

// gateOf finds the process of a box's gate.
func gateOf(t *testing.T, b *boxtest.Box) int {
	t.Helper()
	return startedBy(t, b, control.Argv0)
}

// startedBy finds the process that the keeper of a box started with that argv[0].
func startedBy(t *testing.T, b *boxtest.Box, argv0 string) int {
	t.Helper()
	s, err := b.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	child := regexp.MustCompile(fmt.Sprintf(`(?s)^[0-9]+ \(.*\) [A-Z] %d `, s.PID))
	for _, d := range all {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || !child.Match(stat) {
			continue
		}
		// The name in stat may still be that of the file, see package process.
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && bytes.HasPrefix(args, []byte(argv0+"\x00")) {
			return pid
		}
	}
	t.Fatalf("the keeper has no child %s", argv0)
	return 0
}

// TestGate_DeniesWithoutJournal makes the gate's journal unwritable. No connection may pass until the journal can be
// written again.
func TestGate_DeniesWithoutJournal(t *testing.T) {
	t.Parallel()
	at := outside(t)
	b := (boxtest.Tier{Config: supervised}).
		Start(t, func(c *plan.Config) { c.Phases = []plan.Phase{phase(t, time.Time{}, at.String())} })
	if got, ok := reach(t, b, at); !ok {
		t.Fatalf("%q", got)
	}
	told(t, b, func(e wire.NetEvent) bool { return e.Kind == wire.NetEnd })
	file := filepath.Join(b.Config.Journal, "net.jsonl")
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	reach(t, b, at) // this connection is in progress when the gate notices
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, ok := reach(t, b, at); !ok {
			break
		}
		if time.Now().After(end) {
			t.Fatal("connections pass without a journal")
		}
	}
	if n, err := b.Net(t.Context()); err != nil || n.EventsLost == 0 {
		t.Errorf("%+v, %v", n, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".away", file); err != nil {
		t.Fatal(err)
	}
	told(t, b, func(e wire.NetEvent) bool { return strings.Contains(e.Reason, "the journal could not be written") })
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, ok := reach(t, b, at); ok {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no connection passes although the journal can be written")
		}
	}
}

// TestGate_StartsWithFirstPacket checks that the gate of a box whose network is off starts when a program uses the
// network, or with another policy, and that until then nothing that the kernels send by themselves starts it.
func TestGate_StartsWithFirstPacket(t *testing.T) {
	t.Parallel()
	at := outside(t)
	off := phaseOf(t, time.Time{}, "version: 1\nnetwork: off")
	for name, wake := range map[string]func(*testing.T, *boxtest.Box){
		"packet": func(t *testing.T, b *boxtest.Box) {
			if got, ok := reach(t, b, at); ok {
				t.Errorf("connected without an allow rule: %q", got)
			}
			told(t, b, func(e wire.NetEvent) bool {
				return e.Kind == wire.NetDeny && e.Addr == at.Addr().String() && e.Policy == b.Config.Phases[0].Digest
			})
		},
		"policy": func(t *testing.T, b *boxtest.Box) {
			if err := b.SetPolicy(t.Context(), b.Config.Phases); err != nil || gates(t, b) != 0 {
				t.Errorf("the same policy: %v, %d gates", err, gates(t, b))
			}
			if err := b.SetPolicy(t.Context(), []plan.Phase{phase(t, time.Time{}, at.String())}); err != nil {
				t.Fatal(err)
			}
			if got, ok := reach(t, b, at); !ok || got != "from outside\n" {
				t.Errorf("with a rule: %q", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := (boxtest.Tier{Config: supervised}).Start(t, func(c *plan.Config) {
				c.ID, c.Net, c.Phases = fmt.Sprintf("first-%s-%d", name, os.Getpid()), plan.NetOff, []plan.Phase{off}
			})
			b.Sh(t, "sleep 1") // the kernel reports its multicast groups meanwhile
			if now, err := b.Net(t.Context()); err != nil || now.Conns != 0 || gates(t, b) != 0 {
				t.Errorf("before the first packet: %+v, %v, %d gates", now, err, gates(t, b))
			}
			wake(t, b)
			if gates(t, b) != 1 {
				t.Errorf("%d gates", gates(t, b))
			}
			if err := b.Stop(t.Context(), 0); err != nil || gates(t, b) != 0 {
				t.Errorf("after the stop: %v, %d gates", err, gates(t, b))
			}
		})
	}
}

// TestGate_RecordsLastPacket checks that a packet is decided and recorded if the box ends just after it was sent: the
// gate may not have read it, or may not even have started.
func TestGate_RecordsLastPacket(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"waiting": "version: 1\nnetwork: off", "running": "version: 1\nnetwork: {allow: [a.example]}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := (boxtest.Tier{Config: supervised}).Start(t, func(c *plan.Config) {
				c.ID, c.Phases = fmt.Sprintf("last-%s-%d", name, os.Getpid()), []plan.Phase{phaseOf(t, time.Time{}, text)}
				if name == "waiting" {
					c.Net = plan.NetOff
				}
			})
			// Until the box's kernel has noticed that its interface is up, a second at most, it drops what programs send.
			b.Do(t, wire.ExecRequest{Cmd: []string{"bash", "-c", "sleep 2; echo x >/dev/udp/93.184.216.34/123"}})
			if err := b.Stop(t.Context(), 0); err != nil || gates(t, b) != 0 {
				t.Errorf("stop: %v, %d gates", err, gates(t, b))
			}
			evs, err := journal.Read(journal.Place{Dir: b.Config.Journal, Key: b.Config.JournalKey}, journal.Query{})
			if err != nil || !slices.ContainsFunc(evs, func(e wire.NetEvent) bool {
				return e.Kind == wire.NetDeny && e.Addr == "93.184.216.34" && e.Port == 123
			}) {
				t.Errorf("%+v, %v", evs, err)
			}
		})
	}
}

// gates returns the number of gate processes of a box.
func gates(t *testing.T, b *boxtest.Box) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		text, _ := os.ReadFile(name) // the process may have exited
		if string(text) == control.Argv0+"\x00"+b.Config.ID+"\x00" {
			n++
		}
	}
	return n
}

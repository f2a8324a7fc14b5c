//go:build linux && (amd64 || arm64)

package gate

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
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

	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/gate/sentrytest"
)

// The tests run as the calling user. Real root runs them a second time as an ordinary user that is uid 0 of a user
// namespace, as the daemon is. COPPICE_TEST_ROOT_ONLY and COPPICE_TEST_USER_ONLY select one of the two.
const (
	inUserNS = "COPPICE_TEST_USERNS"
	inside   = "COPPICE_TEST_INSIDE" // the value is a kind
)

func TestMain(m *testing.M) {
	if k := os.Getenv(inside); k != "" {
		os.Exit(agent(kind(k)))
	}
	if os.Getenv(inUserNS) == "" && os.Getuid() != 0 {
		os.Exit(again(&syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}, inUserNS+"=1"))
	}
	root, code := os.Getuid() == 0 && os.Getenv(inUserNS) == "", 0
	if !root || os.Getenv("COPPICE_TEST_USER_ONLY") == "" {
		code = m.Run()
	}
	if root && os.Getenv("COPPICE_TEST_ROOT_ONLY") == "" {
		fmt.Println("--- as an ordinary user")
		code |= again(&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1001, Gid: 1001}})
	}
	os.Exit(code)
}

func again(attr *syscall.SysProcAttr, env ...string) int {
	args := slices.DeleteFunc(slices.Clone(os.Args), func(a string) bool { // files of go test, unwritable for the user
		return strings.HasPrefix(a, "-test.testlogfile") || strings.HasPrefix(a, "-test.coverprofile") ||
			strings.HasPrefix(a, "-test.gocoverdir") || strings.HasPrefix(a, "-test.fuzz")
	})
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: args, Dir: "/", Env: append(os.Environ(), env...), Stdout: os.Stdout,
		Stderr: os.Stderr, SysProcAttr: attr}
	if err := cmd.Run(); err != nil {
		fmt.Println("run again:", err)
		return 1
	}
	return 0
}

// order is a command from a test to the agent inside the sandbox, and word the agent's reply.
type (
	order struct {
		Do   string
		Args []string
		Data []byte
	}
	word struct {
		Out []byte
		Err string
	}
)

// agent runs in a sandbox's namespaces and executes the orders of tests.
func agent(k kind) int {
	if k == socket {
		var err error
		if sandboxed, err = sentrytest.New(3, link.BoxInterface()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	in.Buffer(nil, 1<<24)
	for in.Scan() {
		var o order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		var w word
		do, ok := orders[o.Do]
		if !ok {
			w.Err = "no such order: " + o.Do
		} else if b, err := do(o.Args, o.Data); err != nil {
			w.Out, w.Err = b, err.Error()
		} else {
			w.Out = b
		}
		if err := out.Encode(w); err != nil {
			return 1
		}
	}
	return 0
}

// sandbox is an agent with a gate.
type sandbox struct {
	*Gate
	cmd  *exec.Cmd
	in   *json.Encoder
	out  *json.Decoder
	book *book
	pair *os.File // the gate's end of a Pair; nil once a gate has it

	mu     sync.Mutex
	events []Event
	told   chan struct{}
}

// book is a policy, a name server and the routes to servers: the internet of a test.
type book struct {
	mu      sync.Mutex
	decide  func(Request) Decision
	names   map[string][]netip.Addr
	ttl     time.Duration
	hosts   map[netip.AddrPort]string // addresses at which the servers really listen
	asked   []string                  // guarded by mu
	dialled []netip.AddrPort          // guarded by mu
}

func (b *book) Decide(r Request) Decision { return b.decide(r) }

func (b *book) lookup(_ context.Context, name string) ([]netip.Addr, time.Duration, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, name)
	a, ok := b.names[name]
	if !ok {
		return nil, 0, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	return a, b.ttl, nil
}

func (b *book) dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	b.mu.Lock()
	b.dialled = append(b.dialled, to)
	at, ok := b.hosts[to]
	b.mu.Unlock()
	if !ok {
		return nil, syscall.ECONNREFUSED
	}
	var d net.Dialer
	return d.DialContext(ctx, network, at)
}

// reached returns the addresses dialled so far. The gate may be dialling meanwhile.
func (b *book) reached() []netip.AddrPort {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.dialled)
}

// sought returns the names looked up outside so far.
func (b *book) sought() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.asked)
}

// allowNames returns a policy that allows names and ports, such as "a.example:443".
func allowNames(s ...string) func(Request) Decision {
	return func(r Request) Decision {
		for _, x := range s {
			host, port, _ := strings.Cut(x, ":")
			p, _ := strconv.Atoi(port)
			switch {
			case !r.Host.IsZero() && r.Host.String() == host &&
				(!r.Addr.IsValid() || r.Proto == TCP && r.Port == uint16(p) || r.Proto == ICMP):
				return Decision{Verdict: Allow, Rule: x}
			case r.Host.IsZero() && r.Addr.IsValid() && r.Addr.String() == host && (r.Port == 0 || r.Port == uint16(p)):
				return Decision{Verdict: Allow, Rule: x}
			}
		}
		return Decision{Hint: "allow it"}
	}
}

// start starts a sandbox with a gate; change may change the gate's options.
func start(t testing.TB, k kind, b *book, change func(*Options)) *sandbox {
	t.Helper()
	s := launch(t, k)
	s.book = b
	o := Options{FD: s.link(t, 0), Policy: b, Dial: b.dial, Lookup: b.lookup, Report: s.report}
	if change != nil {
		change(&o)
	}
	g, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	s.Gate = g
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// launch starts an agent in its own namespaces, with a resolv.conf that names the gate. Its user namespace is a child
// of the caller's, as a sandbox's is. If the link is a socket, the agent has a sentry's network stack instead of the
// kernel's.
func launch(t testing.TB, k kind) *sandbox {
	t.Helper()
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{os.Args[0]}, Env: append(os.Environ(), inside+"="+string(k)),
		Stderr: os.Stderr, SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &sandbox{cmd: cmd, in: json.NewEncoder(in), out: json.NewDecoder(out), told: make(chan struct{}, 1)}
	if k == socket {
		box, gate, err := link.Pair()
		if err != nil {
			t.Fatal(err)
		}
		defer box.Close()
		cmd.ExtraFiles, s.pair = []*os.File{box}, gate
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("needs user-namespaces: %v", err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error("agent:", err)
		}
	})
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, link.Resolvers(false), 0o644); err != nil {
		t.Fatal(err)
	}
	s.must(t, "mount", nil, conf, "/etc/resolv.conf")
	return s
}

func (s *sandbox) netns(t testing.TB) *os.File {
	t.Helper()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// link returns the gate's end of the sandbox's link. mtu does not apply to a Pair.
func (s *sandbox) link(t testing.TB, mtu int) *os.File {
	t.Helper()
	if fd := s.pair; fd != nil {
		s.pair = nil
		return fd
	}
	ns := s.netns(t)
	defer ns.Close()
	fd, err := link.Open(ns, mtu)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// do sends the agent an order and waits for its reply.
func (s *sandbox) do(what string, data []byte, args ...string) ([]byte, error) {
	if err := s.in.Encode(order{what, args, data}); err != nil {
		return nil, err
	}
	var w word
	if err := s.out.Decode(&w); err != nil {
		return nil, err
	}
	if w.Err != "" {
		return w.Out, fmt.Errorf("%s", w.Err)
	}
	return w.Out, nil
}

func (s *sandbox) must(t testing.TB, what string, data []byte, args ...string) []byte {
	t.Helper()
	out, err := s.do(what, data, args...)
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", what, args, err, out)
	}
	return out
}

func (s *sandbox) report(e Event) {
	s.mu.Lock()
	s.events = append(s.events, e)
	s.mu.Unlock()
	select {
	case s.told <- struct{}{}:
	default:
	}
}

// wait waits for an event that ok accepts and returns it.
func (s *sandbox) wait(t testing.TB, what string, ok func(Event) bool) Event {
	t.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		s.mu.Lock()
		for _, e := range s.events {
			if ok(e) {
				s.mu.Unlock()
				return e
			}
		}
		s.mu.Unlock()
		select {
		case <-s.told:
		case <-timeout:
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, e := range s.events {
				t.Logf("%+v", e)
			}
			t.Fatalf("no event of %s", what)
		}
	}
}

// denied waits for a denial whose reason contains words.
func (s *sandbox) denied(t testing.TB, proto Proto, words string) Event {
	t.Helper()
	return s.wait(t, words, func(e Event) bool {
		return e.Kind == KindDeny && e.Proto == proto && strings.Contains(e.Reason, words)
	})
}

// listen serves connections on a loopback port and returns its address.
func listen(t testing.TB, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

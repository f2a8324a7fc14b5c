//go:build linux && (amd64 || arm64)

package notify

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/box/seccomp"
	"github.com/coppice-dev/coppice/internal/gate/entrance/ask"
	"github.com/coppice-dev/coppice/internal/landlock"
)

// argInet is the argv[0] of a small locked workspace: an init that serves calls, and starts one program under the
// filters.
const argInet = "notify-inet"

// inetConfig is passed in argv[1].
type inetConfig struct {
	Inet    string   // Inet.Dir
	Work    string   // a directory that the program can change
	Path    string   // of the program, which gets the environment of the test
	Program []string // its arguments, with its name
	Files   uint64   // the limit of init's descriptors; 0 leaves it
	Record  bool     // of the programs that begin
	Count   string   // a file to which init writes the number of its goroutines from time to time; "" is none
}

// beInet starts the program, and prints the refusals and what is left in this process at the end.
func beInet() int {
	var c inetConfig
	if err := json.Unmarshal([]byte(os.Args[1]), &c); err != nil {
		return complain("%v", err)
	}
	// Orphans remain descendants: see others.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return complain("%v", err)
	}
	if c.Files > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: c.Files, Max: c.Files}); err != nil {
			return complain("%v", err)
		}
	}
	cmd := &exec.Cmd{Path: c.Path, Args: c.Program}
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Work, os.Stdout, os.Stderr
	installed, started := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread is confined
		l, err := c.confine()
		installed <- l
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		select {}
	}()
	before := open()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if c.Count != "" {
		var counting sync.WaitGroup
		defer counting.Wait()
		defer stop()
		counting.Go(func() { count(ctx, c.Count) })
	}
	served := make(chan error, 1)
	inet, err := NewInternet(Inet{Dir: c.Inet, Processes: others,
		Own: []netip.Addr{netip.MustParseAddr("192.0.0.2"), netip.MustParseAddr("fdc0::2")}})
	if err != nil {
		return complain("%v", err)
	}
	defer inet.Close()
	opt := Options{Sockets: []string{c.Work}, Terminals: true, Refusals: seccomp.RefusalsOf(refusedInet), Inet: inet}
	if c.Record {
		opt.Asked, opt.Unasked, opt.Began = func(Execution) {}, func(int) {}, func(int) {}
	}
	go func() { served <- Serve(ctx, os.NewFile(uintptr(<-installed), "listener"), opt) }()
	if err := <-started; err != nil {
		return complain("start: %v", err)
	}
	werr := cmd.Wait()
	for late := time.Now().Add(5 * time.Minute); open() > before+8; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			return complain("init has %d descriptors, and had %d", open(), before)
		}
	}
	if n := threads(); n > mostThreads {
		return complain("init has %d threads", n)
	}
	stop()
	if err := <-served; err != nil && !errors.Is(err, context.Canceled) {
		return complain("serve: %v", err)
	}
	if werr != nil {
		return complain("%v", werr)
	}
	return 0
}

// count writes the number of goroutines to a file until ctx is done.
func count(ctx context.Context, to string) {
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		_ = os.WriteFile(to+".tmp", []byte(strconv.Itoa(runtime.NumGoroutine())), 0o644)
		_ = os.Rename(to+".tmp", to)
	}
}

// open returns the number of this process's descriptors.
func open() int {
	names, _ := os.ReadDir("/proc/self/fd")
	return len(names)
}

// mostThreads is more than init needs while maxConnecting calls of connect(2) wait for the kernel.
const mostThreads = maxConnecting + maxBrief

// threads returns the number of this process's threads. The Go runtime keeps those that it has started.
func threads() int {
	names, _ := os.ReadDir("/proc/self/task")
	return len(names)
}

var refusedInet = seccomp.Options{Report: true, Shared: true, NoInet: true, GateInet: true}

// confine confines this thread like the launcher of a locked workspace.
func (c inetConfig) confine() (listener int, err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, err
	}
	if abi, err := landlock.Version(); err == nil {
		r, err := landlock.New(landlock.HandledBy(abi))
		if err != nil {
			return -1, err
		}
		defer r.Close()
		for dir, rights := range map[string]uint64{"/usr": landlock.RunRights, "/bin": landlock.RunRights,
			"/lib": landlock.RunRights, "/lib64": landlock.RunRights, "/etc": landlock.ReadRights,
			"/proc": landlock.ReadRights, "/sys": landlock.ReadRights,
			"/dev": landlock.ReadRights | unix.LANDLOCK_ACCESS_FS_WRITE_FILE,
			c.Work: ^uint64(0), "/proc/self/exe": landlock.RunRights} {
			fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			if err == nil {
				err = r.Allow(fd, rights)
				unix.Close(fd)
			}
			if err != nil {
				return -1, err
			}
		}
		if err := r.Restrict(); err != nil {
			return -1, err
		}
	}
	listener, err = seccomp.Install(seccomp.Notifying(
		seccomp.NotifyOptions{Connect: true, Terminals: true, Inet: true, Refuse: refusedInet}), seccomp.Listener)
	if err == nil {
		_, err = seccomp.Install(seccomp.Hardening(refusedInet), 0)
	}
	return listener, err
}

// inetUsers returns the users as which the tests run: an ordinary one and, if the test runs as root, root.
// COPPICE_TEST_ROOT_ONLY or COPPICE_TEST_USER_ONLY selects one of the two.
func inetUsers(t testing.TB) map[string]int {
	t.Helper()
	if os.Getuid() != 0 {
		return map[string]int{"user": os.Getuid()}
	}
	users := map[string]int{}
	if os.Getenv("COPPICE_TEST_USER_ONLY") == "" {
		users["root"] = 0
	}
	if os.Getenv("COPPICE_TEST_ROOT_ONLY") != "" {
		return users
	}
	u, err := user.Lookup("coppiceuser")
	if err != nil {
		t.Log("skip: feature ordinary-user: no user coppiceuser")
		return users
	}
	users["user"], _ = strconv.Atoi(u.Uid)
	return users
}

// entrance is the other end of an Inet: it dials what its table says, and records all that it is asked for.
type entrance struct {
	t      testing.TB
	dir    string // of the listeners
	work   string
	uid    int
	table  map[string]string // by the address asked for; an error number refuses, "-" never answers
	files  uint64            // inetConfig.Files
	record bool              // inetConfig.Record
	count  string            // inetConfig.Count

	mu    sync.Mutex
	asked map[string]int
	begun chan struct{}            // a dial without an answer has begun
	up    chan struct{}            // a dial was given up
	live  map[*net.UnixConn]func() // sessions for UDP, and how to kill them
	die   []func()
}

// newEntrance starts an entrance and makes the directories of a sandbox.
func newEntrance(t testing.TB, uid int, table map[string]string) *entrance {
	t.Helper()
	top, err := os.MkdirTemp("/tmp", "inet") // not t.TempDir: other users cannot enter its parent
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	e := &entrance{t: t, dir: filepath.Join(top, "run"), work: filepath.Join(top, "work"), uid: uid, table: table,
		asked: map[string]int{}, begun: make(chan struct{}, 1000), up: make(chan struct{}, 1000),
		live: map[*net.UnixConn]func(){}}
	for _, dir := range []string{top, e.dir, e.work, filepath.Join(e.dir, InetPorts)} {
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = os.Chmod(dir, 0o755)
		}
		if err == nil {
			err = os.Chown(dir, uid, uid)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, network := range map[string]string{ask.Stream: "unix", ask.Messages: "unixpacket"} {
		l, err := net.ListenUnix(network, &net.UnixAddr{Name: filepath.Join(e.dir, name), Net: network})
		if err == nil {
			err = os.Chmod(l.Addr().String(), 0o777)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		e.die = append(e.die, func() { l.Close() })
		go func() {
			for {
				c, err := l.AcceptUnix()
				if err != nil {
					return
				}
				go e.serve(c, network == "unixpacket")
			}
		}()
	}
	return e
}

// wanted returns how often an address was asked for.
func (e *entrance) wanted(address string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked[address]
}

// awaitNoSession waits until all sessions for UDP have ended.
func (e *entrance) awaitNoSession() {
	left := func() int {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.live)
	}
	for late := time.Now().Add(time.Minute); left() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			e.t.Errorf("%d sessions are left", left())
			return
		}
	}
}

// kill ends the entrance as a SIGKILL does.
func (e *entrance) kill() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, end := range e.die {
		end()
	}
	for _, end := range e.live {
		end()
	}
}

// serve reads the header of a connection, dials and transports.
func (e *entrance) serve(c *net.UnixConn, packet bool) {
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	b, oob := make([]byte, ask.HeaderSize), make([]byte, 64)
	n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
	messages, _ := unix.ParseSocketControlMessage(oob[:oobn])
	asked, _, perr := ask.ParseHeader(b[:n])
	if err != nil || perr != nil || len(messages) != 1 {
		e.t.Logf("a connection without a header: %v, %v", err, perr)
		return
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) < 1 || packet != (len(fds) == 2) {
		return
	}
	status := os.NewFile(uintptr(fds[0]), "status")
	defer status.Close()
	var far *os.File
	if packet {
		far = os.NewFile(uintptr(fds[1]), "far end")
		defer far.Close()
	}
	to := asked.String()
	e.mu.Lock()
	e.asked[to]++
	at, ok := e.table[to]
	e.mu.Unlock()
	if _, port, _ := net.SplitHostPort(to); port == "53" {
		at, ok = e.table["dns"], true
	}
	at, slow := strings.CutPrefix(at, "slow ")
	if slow {
		time.Sleep(time.Second)
	}
	errno, err := strconv.Atoi(at)
	switch {
	case at == "-":
		select {
		case e.begun <- struct{}{}:
		default: // a flood of dials: no test waits for each of them
		}
		_ = c.SetReadDeadline(time.Time{})
		_, _ = c.Read(make([]byte, 1)) // until the caller gives up
		e.mu.Lock()
		e.asked["given up"]++
		e.mu.Unlock()
		e.up <- struct{}{}
		return
	case at == "until begun":
		e.await(e.begun, "begun")
		errno, err = 0, nil
	case at == "until given up":
		e.await(e.up, "given up")
		errno, err = 0, nil
	case at == "until no session":
		e.awaitNoSession()
		errno, err = 0, nil
	case at == "death":
		e.kill()
		return
	case !ok:
		errno, err = int(unix.EHOSTUNREACH), nil
	}
	network := "tcp"
	switch {
	case packet && strings.HasPrefix(at, "/"): // loses nothing
		network = "unixgram"
	case packet:
		network = "udp"
	}
	var out net.Conn
	if err != nil {
		errno = 0
		if out, err = net.Dial(network, at); err != nil {
			e.t.Logf("%s: %v", to, err)
			errno = int(unix.ECONNREFUSED)
		}
	}
	answer := ask.Status(unix.Errno(errno))
	_, _ = status.Write(answer[:])
	status.Close()
	if out == nil {
		return
	}
	defer out.Close()
	_ = c.SetReadDeadline(time.Time{})
	if packet {
		e.relay(c, far, out)
		return
	}
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(out, c)
		_ = out.(*net.TCPConn).CloseWrite()
	})
	_, _ = io.Copy(c, out)
	_ = c.CloseWrite()
	both.Wait()
}

// relay transports datagrams until a session ends, and then what is queued.
func (e *entrance) relay(session *net.UnixConn, far *os.File, out net.Conn) {
	end, err := net.FileConn(far)
	if err != nil {
		return
	}
	far.Close()
	defer end.Close()
	e.mu.Lock()
	e.live[session] = func() { end.Close(); session.Close() }
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.live, session)
	}()
	var down, watch sync.WaitGroup
	down.Go(func() {
		b := make([]byte, maxDatagram)
		for {
			n, err := out.Read(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_ = sendNow(end, b[:n])
			}
		}
	})
	watch.Go(func() {
		_, _ = session.Read(make([]byte, 1))
		_ = end.SetReadDeadline(time.Unix(1, 0))
	})
	raw, err := end.(*net.UnixConn).SyscallConn()
	b := make([]byte, maxDatagram)
	for err == nil {
		var n int
		if n, err = end.Read(b); err == nil {
			_, _ = out.Write(b[:n])
		}
	}
	for errors.Is(err, os.ErrDeadlineExceeded) {
		var n int
		var failed error
		if raw.Control(func(fd uintptr) { n, _, failed = unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT) }) != nil ||
			failed != nil || n == 0 {
			break
		}
		_, _ = out.Write(b[:n])
	}
	out.Close()
	down.Wait()
	end.Close()
	_ = session.SetReadDeadline(time.Unix(1, 0))
	watch.Wait()
}

// sendNow sends a message, if there is room.
func sendNow(c net.Conn, b []byte) error {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { _ = unix.Send(int(fd), b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) })
	}
	return err
}

// run runs a program in the sandbox, and returns its output.
func (e *entrance) run(program []string, env ...string) (string, error) {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Minute)
	defer stop()
	cmd, err := e.command(ctx, program, env...)
	if err != nil {
		return "", err
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// command returns the command of init, which runs a program in the sandbox.
func (e *entrance) command(ctx context.Context, program []string, env ...string) (*exec.Cmd, error) {
	path := "/proc/self/exe" // of the programs of this binary
	if filepath.IsAbs(program[0]) {
		path = program[0]
	}
	arg, err := json.Marshal(inetConfig{Inet: e.dir, Work: e.work, Path: path, Program: program, Files: e.files,
		Record: e.record, Count: e.count})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args, cmd.Dir = []string{argInet, string(arg)}, "/"
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/go/bin", "HOME=" + e.work, "TMPDIR=" + e.work,
		"LANG=C.UTF-8", "RUN=" + e.dir}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if e.uid != os.Getuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(e.uid), Gid: uint32(e.uid)}
	}
	cmd.WaitDelay = 5 * time.Second // a program that is left over may have the output
	return cmd, nil
}

// others lists this process's descendants, which are the processes of the sandbox.
func others() ([]int, error) { return procs.PIDs(os.Getpid()) }

// await waits until a dial has begun, or was given up.
func (e *entrance) await(dial <-chan struct{}, what string) {
	select {
	case <-dial:
	case <-time.After(5 * time.Minute):
		e.t.Errorf("no dial was %s", what)
	}
}

// resolver starts a DNS server that knows every name, over UDP and TCP, and returns its address.
func resolver(t testing.TB, answer [4]byte) string {
	t.Helper()
	reply := func(query []byte) []byte {
		var m dnsmessage.Message
		if m.Unpack(query) != nil || len(m.Questions) != 1 {
			return nil
		}
		q := m.Questions[0]
		m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
		if q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class,
				TTL: 1}, Body: &dnsmessage.AResource{A: answer}}}
		}
		b, _ := m.Pack()
		return b
	}
	l, p := bothPorts(t)
	t.Cleanup(func() { l.Close(); p.Close() })
	go func() {
		b := make([]byte, maxDatagram)
		for {
			n, from, err := p.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = p.WriteTo(reply(b[:n]), from)
		}
	}()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for {
					var size uint16
					if binary.Read(c, binary.BigEndian, &size) != nil {
						return
					}
					b := make([]byte, size)
					if _, err := io.ReadFull(c, b); err != nil {
						return
					}
					r := reply(b)
					_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(r))), r...))
				}
			}()
		}
	}()
	return l.Addr().String()
}

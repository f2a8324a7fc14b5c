//go:build linux && (amd64 || arm64)

package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
	"github.com/coppice-dev/coppice/internal/thread"
)

// Process is a running gate process. Its methods are safe for concurrent use.
type Process struct {
	journal string
	key     []byte // of the journal
	pid     int
	gone    chan struct{} // closed when the process was reaped
	touched chan struct{} // closed when a token of a decoy was reported

	reap   sync.Mutex
	reaped bool // guarded by reap: after that the pid may be another process's

	patience time.Duration // timeout of a reply

	mu   sync.Mutex // held from a request to its reply
	conn *os.File
	read *io.LimitedReader // of conn; guarded by mu
	dec  *json.Decoder
}

const (
	// endPatience is how long the process may take to exit, and askPatience to reply.
	endPatience = 2 * time.Second
	askPatience = 30 * time.Second
	// maxReply is the maximum size of a reply, in bytes.
	maxReply = 1 << 20
)

// environment is the whole environment of the process. There is one process per sandbox, so each gets few threads.
// The memory limit is well below mostMemory, so that the garbage collector works harder first.
var environment = []string{"GOMAXPROCS=2", "GOGC=50", "GOMEMLIMIT=640MiB"}

// Start starts exe, the coppice-gate program, for the sandbox with the given ID, with the directory of its journal
// and the secret of the journal's key. The process writes its standard error to log. Neither file is closed. Start
// does not wait for the process to initialize, and there is no gate before Begin. The caller must call Close.
func Start(exe *os.File, id, journal string, key []byte, log *os.File) (*Process, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fault.Wrap(err, "create the stream to the gate")
	}
	defer unix.Close(pair[1])
	conn := os.NewFile(uintptr(pair[0]), "gate")
	null, err := os.Open("/dev/null")
	if err != nil {
		conn.Close()
		return nil, fault.Wrap(err, "start the gate")
	}
	defer null.Close()
	output, err := program.Guard(exe, log)
	if err != nil {
		conn.Close()
		return nil, fault.Wrap(err, "start the gate")
	}
	defer output.Close()
	touch, touchW, err := os.Pipe()
	if err != nil {
		conn.Close()
		return nil, fault.Wrap(err, "start the gate")
	}
	defer touchW.Close()
	var pid int
	path := program.Path(exe)
	thread.OnOwn(func() {
		if err = renounce(); err == nil {
			err = wall(path, journal)
		}
		if err != nil {
			return
		}
		pid, err = syscall.ForkExec(path, []string{Argv0, id}, &syscall.ProcAttr{
			Dir: "/", Env: environment, Sys: &syscall.SysProcAttr{Setsid: true},
			Files: []uintptr{null.Fd(), output.Fd(), output.Fd(), uintptr(pair[1]), touchW.Fd()},
		})
	})
	runtime.KeepAlive(exe)
	if err != nil {
		conn.Close()
		touch.Close()
		return nil, fault.Wrap(err, "start the gate")
	}
	p := &Process{journal: journal, key: key, pid: pid, conn: conn, gone: make(chan struct{}),
		touched: make(chan struct{}), patience: askPatience, read: &io.LimitedReader{R: conn}}
	p.dec = json.NewDecoder(p.read)
	go p.wait() // ends with the process, which Close kills
	go func() { // ends with the process too
		defer touch.Close()
		if n, _ := touch.Read(make([]byte, 1)); n == 1 {
			close(p.touched)
		}
	}()
	return p, nil
}

// wait reaps the process when it has exited, but not while it is being signalled.
func (p *Process) wait() {
	defer close(p.gone)
	for {
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_PID, p.pid, &info, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	p.reap.Lock()
	defer p.reap.Unlock()
	p.reaped = true
	for {
		if _, err := unix.Wait4(p.pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// Begin starts the gate for packets, the socket of a link of either kind. The gate enforces phases, searches for
// tokens of decoys, puts secrets into requests as s says, and writes events to the journal. packets is not closed. ca
// is Reply.CA.
func (p *Process) Begin(packets *os.File, phases []plan.Phase, d Decoys, s Secrets) (ca []byte, err error) {
	return p.begin(phases, d, s, packets)
}

// BeginEntrance is Begin for a sandbox without a network stack: the process also runs an entrance (package entrance),
// which accepts connections from two listening Unix sockets, stream of type SOCK_STREAM and messages of type
// SOCK_SEQPACKET. Neither is closed. The caller closes its own copies soon: while there is one, connections to the
// listeners of a gate that has exited wait for an answer instead of being refused.
func (p *Process) BeginEntrance(stream, messages *os.File, phases []plan.Phase, d Decoys, s Secrets) (
	ca []byte, err error) {
	return p.begin(phases, d, s, stream, messages)
}

// begin passes the process sockets, and sends the first request.
func (p *Process) begin(phases []plan.Phase, d Decoys, s Secrets, sockets ...*os.File) (ca []byte, err error) {
	// The stream is empty, so the byte is sent at once.
	if err = p.send([]byte{0}, sockets...); err != nil {
		return nil, fault.Wrap(err, "pass the gate the sandbox's sockets")
	}
	r, err := p.ask(Request{Journal: p.journal, Key: p.key, Phases: phases, Decoys: d, Secrets: &s})
	return r.CA, err
}

// send sends b, which must not be long, with files.
func (p *Process) send(b []byte, files ...*os.File) error {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return err
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		sent = unix.Sendmsg(int(fd), b, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
		return !errors.Is(sent, unix.EAGAIN) && !errors.Is(sent, unix.EINTR)
	})
	runtime.KeepAlive(files)
	return errors.Join(err, sent)
}

// SetPolicy makes the gate enforce phases from now on. When it returns nil, connections that they do not allow have
// been cut.
func (p *Process) SetPolicy(phases []plan.Phase) error {
	_, err := p.ask(Request{Phases: phases})
	return err
}

// SetSecrets replaces the grants, and the line unless line is nil; line is not closed. When it returns nil, connections
// that have carried the secret of a grant that is gone or revoked have been cut, and the gate has forgotten its value;
// the answers have settled pending requests.
func (p *Process) SetSecrets(line *os.File, grants []plan.Grant, answers ...plan.Answer) error {
	_, err := p.ask(Request{Secrets: &Secrets{Line: line, Grants: grants, Answers: answers}})
	return err
}

// Now returns the state of the network.
func (p *Process) Now() (wire.NetNow, error) {
	r, err := p.ask(Request{})
	return r.Now, err
}

// ask sends a request, and kills a gate that does not reply correctly: it parses hostile input, so after an error its
// replies cannot be trusted.
func (p *Process) ask(q Request) (r Reply, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read.N = maxReply
	if err = p.conn.SetDeadline(time.Now().Add(p.patience)); err == nil {
		err = p.write(q)
	}
	if err == nil {
		err = p.dec.Decode(&r)
	}
	if err != nil {
		if !errors.Is(err, os.ErrClosed) { // Close handles the process then
			p.kill()
		}
		return Reply{}, fault.New(fault.Unavailable, "the sandbox's gate has exited: the network is unreachable").
			Because(err).WithHint("restart the sandbox: coppice stop NAME; the next command starts it")
	}
	return r, r.fault()
}

// write sends a request, with the line in it.
func (p *Process) write(q Request) error {
	if q.Secrets == nil || q.Secrets.Line == nil {
		return json.NewEncoder(p.conn).Encode(q)
	}
	s := *q.Secrets
	s.HasLine, q.Secrets = true, &s
	b, err := json.Marshal(q)
	if err == nil {
		err = p.send(b[:1], s.Line)
	}
	if err == nil {
		_, err = p.conn.Write(b[1:])
	}
	return err
}

// Touched returns a channel that is closed when the gate has reported a token of a decoy. The token was not sent.
func (p *Process) Touched() <-chan struct{} { return p.touched }

// Gone returns a channel that is closed when the process has exited.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Close stops the process and waits until it has exited. It first lets the process record the connections that it
// cuts, and kills it after a timeout.
func (p *Process) Close() {
	_ = p.conn.Close() // fails a request in progress
	select {
	case <-p.gone:
	case <-time.After(endPatience):
		p.kill()
		<-p.gone
	}
}

// kill kills the process, if it has not exited.
func (p *Process) kill() {
	p.reap.Lock()
	defer p.reap.Unlock()
	if !p.reaped {
		_ = unix.Kill(p.pid, unix.SIGKILL)
	}
}

// renounce empties the capability bounding set of this thread and of what it starts: root without it has no
// privileges (capabilities(7)). A thread that may not change the set, because it has no CAP_SETPCAP, must have no
// capabilities at all: because of no_new_privs, execve(2) adds none.
func renounce() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	none, err := hasNoCaps()
	if err != nil {
		return err
	}
	if err := dropBounding(); err != nil && (!none || !errors.Is(err, unix.EPERM)) {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop ambient capabilities: %w", err)
	}
	return nil
}

// dropBounding empties the bounding set. The error is EPERM without CAP_SETPCAP.
func dropBounding() error {
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > unix.CAP_BPF { // the kernel has no further capabilities
			return nil
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
}

// hasNoCaps reports whether this thread has no capabilities, not even inheritable ones.
func hasNoCaps() (bool, error) {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&head, &have[0]); err != nil {
		return false, fmt.Errorf("read the capabilities: %w", err)
	}
	return have == [2]unix.CapUserData{}, nil
}

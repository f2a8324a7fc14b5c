//go:build linux && (amd64 || arm64)

package entrance

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/entrance/ask"
	"github.com/coppice-dev/coppice/internal/limit"
)

// session is a connection from the sandbox: the Unix socket, and what it asks for. Its other end is hostile.
type session struct {
	*net.UnixConn
	raw syscall.RawConn

	mu    sync.Mutex
	ep    tcpip.Endpoint // guarded by mu; nil while there is none
	far   *os.File       // of a session for UDP; guarded by mu, nil before its header
	isCut bool           // guarded by mu
}

func newSession(c *net.UnixConn) (*session, error) {
	raw, err := c.SyscallConn()
	return &session{UnixConn: c, raw: raw}, err
}

// attach makes ep the endpoint that cut resets.
func (s *session) attach(ep tcpip.Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ep = ep; s.isCut {
		ep.Abort()
	}
}

// own makes far the far end that cut and end close.
func (s *session) own(far *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.far = far; s.isCut {
		far.Close()
	}
}

// cut ends both sides of the session at once.
func (s *session) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isCut = true
	if s.ep != nil {
		s.ep.Abort() // first, or the end of the socket would be forwarded as an orderly one
	}
	s.close()
}

// end closes the sockets. It may be called more than once.
func (s *session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close()
}

// close is end with mu held. The far end is first: init may use it for another session when the connection ends.
func (s *session) close() {
	if s.far != nil {
		s.far.Close()
	}
	s.Close()
}

// awaitHangup waits until both directions of a socket have ended: the other end has closed, or each end has shut
// down its own. It returns an error when the socket is closed here, or at its read deadline.
func awaitHangup(raw syscall.RawConn) error {
	return raw.Read(func(fd uintptr) bool { return isSet(fd, unix.POLLHUP) })
}

// hungUp reports whether both directions of the socket have ended.
func (s *session) hungUp() (yes bool) {
	err := s.raw.Control(func(fd uintptr) { yes = isSet(fd, unix.POLLHUP) })
	return yes || err != nil
}

// isSet reports whether poll(2) returns one of the events, of those that need not be asked for or are a hangup.
func isSet(fd uintptr, events int16) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: events}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&events != 0
}

// request is what a header asks for.
type request struct {
	to     netip.AddrPort
	from   uint16
	answer *status  // the caller closes it
	far    *os.File // of a session for UDP, which owns it
}

// readHeader reads the first message of the socket, with its descriptors: one for TCP, two for UDP.
func (s *session) readHeader(want int) (*request, error) {
	if err := s.SetReadDeadline(time.Now().Add(limit.EntranceHeaderSeconds * time.Second)); err != nil {
		return nil, err
	}
	b, rights := make([]byte, ask.HeaderSize), make([]byte, unix.CmsgSpace(4*want))
	var n, got, flags int
	var failed error
	err := s.raw.Read(func(fd uintptr) bool {
		n, got, flags, _, failed = unix.Recvmsg(int(fd), b, rights, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		return !errors.Is(failed, unix.EAGAIN)
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	fds, err := descriptors(rights[:got])
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	if err == nil && (len(fds) != want || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0) {
		err = fault.New(fault.Invalid, "a header has %d descriptors, or is too long", len(fds))
	}
	var r request
	if err == nil {
		r.to, r.from, err = ask.ParseHeader(b[:n])
	}
	if err == nil && want > 1 {
		if r.far, err = openFar(fds[1]); err == nil {
			s.own(r.far)
		}
	}
	if err == nil {
		err = s.SetReadDeadline(time.Time{})
	}
	if err == nil {
		r.answer, err = openStatus(fds[0])
	}
	return &r, err
}

// openFar returns a duplicate of fd, a descriptor from the sandbox, which must be a Unix socket that keeps the bounds
// of messages. Nothing that is done with it waits, whatever flags the sandbox sets.
func openFar(fd int) (*os.File, error) {
	for _, o := range [][2]int{
		{unix.SO_DOMAIN, unix.AF_UNIX}, {unix.SO_TYPE, unix.SOCK_SEQPACKET}, {unix.SO_ACCEPTCONN, 0},
	} {
		if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, o[0]); err != nil || got != o[1] {
			return nil, fault.New(fault.Invalid, "the descriptor of a header is not the end of a pair").Because(err)
		}
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(own, true); err != nil { // the runtime waits for it
		unix.Close(own)
		return nil, err
	}
	return os.NewFile(uintptr(own), "far end"), nil
}

// descriptors returns the descriptors in control messages.
func descriptors(control []byte) (fds []int, err error) {
	msgs, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		got, rerr := unix.ParseUnixRights(&m)
		fds, err = append(fds, got...), errors.Join(err, rerr)
	}
	return fds, err
}

// status is a pipe for one status.
type status struct{ fd int }

// openStatus opens the pipe behind fd, a descriptor from the sandbox, as a file of its own: a write to it cannot be
// made to wait, whatever flags the sandbox sets on fd.
func openStatus(fd int) (*status, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	mode, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO || mode&unix.O_ACCMODE == unix.O_RDONLY {
		return nil, fault.New(fault.Invalid, "the descriptor of a header is not a pipe to write")
	}
	own, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENXIO) {
		return &status{-1}, nil
	}
	return &status{own}, err
}

// answer writes the status and closes the pipe. Init does not wait long for a caller that does not want to block, so an
// error means nothing: a caller that is gone has closed the session.
func (s *status) answer(no syscall.Errno) {
	if s.fd < 0 {
		return
	}
	b := ask.Status(no)
	_, _ = unix.Write(s.fd, b[:])
	s.close()
}

// close closes the pipe, unless answer has.
func (s *status) close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
}

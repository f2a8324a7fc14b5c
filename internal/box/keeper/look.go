//go:build linux && (amd64 || arm64)

package keeper

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
)

// looks are the requests to init that may be answered in any order. The zero value is ready to use.
type looks struct {
	mu   sync.Mutex
	last uint64                           // guarded by mu
	open map[uint64]chan initlink.Message // guarded by mu; each channel receives one answer
}

// begin registers a request. Its answer is sent to the channel until end is called.
func (s *looks) begin() (id uint64, answer chan initlink.Message, end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[uint64]chan initlink.Message{}
	}
	s.last++
	id, answer = s.last, make(chan initlink.Message, 1)
	s.open[id] = answer
	return id, answer, func() {
		s.mu.Lock()
		delete(s.open, id)
		s.mu.Unlock()
		select {
		case m := <-answer: // the answer came too late
			m.Close()
		default:
		}
	}
}

// answer passes an answer on. It drops the answer if the caller has given up.
func (s *looks) answer(m initlink.Message) error {
	var id struct {
		ID uint64 `json:"id"`
	}
	err := m.Decode(&id)
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.open[id.ID]
	delete(s.open, id.ID)
	if waiting == nil {
		m.Close()
		return err
	}
	waiting <- m
	return err
}

// look sends init a Look, and returns its answer and the descriptors that came with it, which the caller closes.
func (k *keeper) look(l initlink.Look) (s initlink.Seen, fds []int, err error) {
	if k.isPaused() != nil {
		return s, nil, errPaused()
	}
	id, answer, end := k.looks.begin()
	defer end()
	l.ID = id
	if err := k.link.Send(initlink.MsgLook, l); err != nil {
		return s, nil, fault.New(fault.Unavailable, "the sandbox's init has exited").Because(err)
	}
	limit := time.NewTimer(protocol.LookPatience)
	defer limit.Stop()
	select {
	case m := <-answer:
		if err = m.Decode(&s); err == nil && s.Err != nil {
			err = (*protocol.Failure)(s.Err).Fault()
		}
		if err != nil {
			m.Close()
			return s, nil, err
		}
		return s, m.FDs, nil
	case <-k.over:
		return s, nil, fault.New(fault.Unavailable, "the sandbox's init has exited")
	case <-limit.C:
		return s, nil, fault.New(fault.Timeout, "the sandbox's init did not respond within %s", protocol.LookPatience).
			WithHint("it may be frozen for a long capture; see: coppice status NAME")
	}
}

// list returns init's answer to a Look that has no descriptor.
func (k *keeper) list(l initlink.Look) (initlink.Seen, error) {
	s, fds, err := k.look(l)
	initlink.Message{FDs: fds}.Close()
	return s, err
}

// signalProcess sends a signal to one process.
func (k *keeper) signalProcess(pid int, start uint64, name string) error {
	sig, err := signalNumber(name)
	if err != nil {
		return err
	}
	_, err = k.list(initlink.Look{What: initlink.LookSignal, PID: pid, Start: start, Signal: int(sig)})
	return err
}

// signalNumber returns a signal by name: "TERM" or "SIGTERM".
func signalNumber(name string) (unix.Signal, error) {
	sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG"))
	if sig == 0 {
		return 0, fault.New(fault.Invalid, "unknown signal %q", name).WithHint("use a name such as TERM or INT")
	}
	return sig, nil
}

// dial answers with a socket that is connected to a port, or connecting.
func (k *keeper) dial(conn *net.UnixConn, port uint16) error {
	s, fds, err := k.look(initlink.Look{What: initlink.LookDial, Port: port})
	if err != nil {
		return err
	}
	defer initlink.Message{FDs: fds}.Close()
	if len(fds) != 1 {
		return fault.New(fault.Internal, "init connected to port %d and sent %d descriptors, expected one", port, len(fds))
	}
	if err := wire.WriteJSON(conn, protocol.FrameReply, s); err != nil {
		return nil // the caller is gone
	}
	if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fds[0]), nil); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-keeper: pass a connection on:", err)
	}
	return nil
}

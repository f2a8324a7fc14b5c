//go:build linux && (amd64 || arm64)

package notify

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// maxBatch is how many messages one sendmmsg(2) or recvmmsg(2) transports: they may return before all are.
const maxBatch = 64

// sending carries out a call that sends on a socket for UDP. If no duplicate of the socket can be had, the call is
// refused and reported: the kernel would send to the current peer, whatever the address is.
func (s *server) sending(c caller, call string, do func(socket int) (int, error)) verdict {
	socket, e, ok := s.known(c)
	if !ok {
		return s.tell(c, call, unix.EACCES)
	}
	defer unix.Close(socket)
	if !e.packet {
		return proceed
	}
	n, err := do(socket)
	return s.outcome(n, err)
}

// sendmsg carries out sendmsg(2) on a socket for UDP. The kernel would ignore the address.
func (s *server) sendmsg(c caller) verdict {
	return s.sending(c, "sendmsg", func(socket int) (int, error) {
		return s.sendMessage(c, socket, c.args[1], int(int32(c.args[2])))
	})
}

// sendmmsg carries out sendmmsg(2) on a socket for UDP.
func (s *server) sendmmsg(c caller) verdict {
	return s.sending(c, "sendmmsg", func(socket int) (int, error) {
		m, err := c.memory()
		if err != nil {
			return 0, err
		}
		defer m.close()
		return several(c, m, func(at uint64, flags int) (int, error) { return s.sendMessage(c, socket, at, flags) })
	})
}

// sendMessage sends the message at an address of the caller's memory.
func (s *server) sendMessage(c caller, socket int, at uint64, flags int) (int, error) {
	m, err := c.message(at)
	if err != nil {
		return 0, err
	}
	var address []byte
	if m.name != 0 && m.nameSize > 0 {
		if address, err = c.askedAddress(m.name, min(uint64(m.nameSize), maxAddress)); err != nil {
			return 0, err
		}
	}
	if m.size > maxPayload {
		return 0, unix.EMSGSIZE
	}
	if err := c.checkControl(m); err != nil {
		return 0, err
	}
	b, err := c.gather(m)
	if err != nil {
		return 0, err
	}
	return s.transmit(c, socket, address, b, flags)
}

// several calls do for the messages of a sendmmsg(2) or recvmmsg(2), stores after each what it returns, and returns
// their number. Only the first one waits. An error ends the call, which returns it only for the first.
func several(c caller, m memory, do func(at uint64, flags int) (int, error)) (done int, err error) {
	flags, most := int(int32(c.args[3])), int(min(uint32(c.args[2]), maxBatch))
	for err == nil && done < most {
		var n int
		at := c.args[1] + uint64(done)*mmsgSize
		if n, err = do(at, flags); err == nil {
			err = m.write(at+msgSize, binary.NativeEndian.AppendUint32(nil, uint32(n)))
		}
		if err == nil {
			done++
		}
		flags |= unix.MSG_DONTWAIT
	}
	if done > 0 {
		err = nil
	}
	return done, err
}

// outcome returns the answer to a call that may wait.
func (s *server) outcome(n int, err error) verdict {
	switch {
	case errors.Is(err, errCrowded):
		return verdict{later: s.inet.brief}
	case errors.Is(err, errBusy):
		return verdict{later: s.connecting}
	case err != nil:
		return fail(err)
	}
	return verdict{value: int64(n)}
}

//go:build linux && (amd64 || arm64)

package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/decoy"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate"
	"github.com/coppice-dev/coppice/internal/gate/control"
	"github.com/coppice-dev/coppice/internal/journal"
)

// mostMemory is how much the process may have of its own, whatever a sandbox does:
// connections, requests and names are bounded by number, and what they weigh by this. A
// gate that reaches it ends, and nothing passes. An orderly one needs a tenth of it.
const mostMemory = 1 << 30

// bound keeps the process to mostMemory.
func bound() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_DATA, &l); err != nil {
		return fmt.Errorf("bound the memory: %w", err)
	}
	l.Max = min(l.Max, mostMemory)
	l.Cur = l.Max
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &l); err != nil {
		return fmt.Errorf("bound the memory: %w", err)
	}
	return nil
}

// Main is the process. It returns its exit code.
func Main() int {
	unix.CloseOnExec(control.ConnFD)
	unix.CloseOnExec(control.TouchFD)
	nameProcess(control.Argv0)
	// Not even another process of the same user looks into this one.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-gate:", err)
		return 1
	}
	if err := bound(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-gate:", err)
		return 1
	}
	conn := os.NewFile(control.ConnFD, "keeper")
	defer conn.Close()
	packets, err := receive(conn)
	if err == nil && packets != nil {
		err = serve(conn, packets)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "coppice-gate:", err)
		return 1
	}
	return 0
}

// nameProcess names the calling thread. A process has the name of its first thread in ps(1)
// and in the kernel's log. main begins on that thread, but the scheduler may have moved it:
// nothing may depend on the name. Landlock keeps us from /proc/self/comm, which would do.
func nameProcess(name string) {
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(unsafe.StringData(name+"\x00"))), 0, 0, 0)
}

// receive waits for the socket of the link; there is none when the keeper went away.
func receive(conn *os.File) (packets *os.File, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	rights := make([]byte, unix.CmsgSpace(4))
	var n, got int
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, got, _, _, failed = unix.Recvmsg(int(fd), make([]byte, 1), rights, unix.MSG_CMSG_CLOEXEC)
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	})
	if err = errors.Join(err, failed); err != nil || n == 0 {
		return nil, err
	}
	msgs, err := unix.ParseSocketControlMessage(rights[:got])
	if err != nil || len(msgs) != 1 {
		return nil, fmt.Errorf("received no socket for packets: %w", errors.Join(err, unix.EBADMSG))
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("received no socket for packets: %w", errors.Join(err, unix.EBADMSG))
	}
	return os.NewFile(uintptr(fds[0]), "packets"), nil
}

// serve answers the keeper until it goes away.
func serve(conn io.ReadWriter, packets *os.File) error {
	in, out := json.NewDecoder(conn), json.NewEncoder(conn)
	var g *warden
	defer func() {
		if g != nil {
			g.close()
		}
	}()
	for {
		var q control.Request
		switch err := in.Decode(&q); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ECONNRESET):
			return nil
		case err != nil:
			return fmt.Errorf("read a request: %w", err)
		}
		var err error
		var ca []byte
		if g == nil {
			g, ca, err = begin(q, packets)
		} else if q.Phases != nil {
			err = g.keepTo(q.Phases)
		}
		r := control.Failed(err)
		if r.CA = ca; g != nil {
			r.Now = g.now()
		}
		if out.Encode(r) != nil {
			return nil // the keeper is gone, which ends the gate
		}
	}
}

// begin makes the gate. ca is what the sandbox has to trust, if anything.
func begin(q control.Request, packets *os.File) (w *warden, ca []byte, err error) {
	if q.Journal == "" {
		return nil, nil, fault.New(fault.Internal, "the first request of a gate has no journal")
	}
	j, err := journal.Open(journal.Place{Dir: q.Journal, Key: q.Key})
	if err != nil {
		return nil, nil, err
	}
	w = &warden{stops: q.Decoys.Stops, journal: j, clock: time.Now, stop: make(chan struct{}),
		changed: make(chan struct{}, 1)}
	if err = w.take(q.Phases); err != nil {
		return nil, nil, errors.Join(err, j.Close())
	}
	// The policy comes with the first step: nothing passes before.
	w.mu.Lock() // what is reported meanwhile finds the gate
	var tokens []decoy.Token
	for _, t := range q.Decoys.Tokens {
		tokens = append(tokens, decoy.Token(t))
	}
	w.gate, err = gate.New(context.Background(), gate.Options{FD: packets, Report: w.report, Tokens: tokens})
	inspects := w.inspects
	w.mu.Unlock()
	if err == nil && inspects {
		if ca, err = w.gate.CA(); err != nil {
			err = errors.Join(err, w.gate.Close())
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, j.Close())
	}
	w.step()
	w.tellEnded()
	w.own.Go(w.keepTime)
	return w, ca, nil
}

// settlePatience is how long a look at the network waits for the journal of a slow disk: much
// less than the keeper waits for the gate.
const settlePatience = time.Second

// now gives the state of the network. What was refused before is in the journal by then, where
// the disk is not too slow for that.
func (w *warden) now() wire.NetNow {
	ctx, cancel := context.WithTimeout(context.Background(), settlePatience)
	defer cancel()
	w.gate.Settle(ctx)
	s := w.gate.Stats()
	n := wire.NetNow{Conns: s.Conns, Flows: s.Flows, In: s.In, Out: s.Out, EventsLost: s.EventsLost + w.lost.Load()}
	for _, q := range s.Asking {
		n.Asking = append(n.Asking, asking(q))
	}
	return n
}

// asking writes a question as people answer it.
func asking(q gate.Question) wire.NetQuestion {
	ev := wire.NetEvent{Proto: string(q.Proto), Name: q.Name, Port: int(q.Port)}
	if q.Addr.IsValid() {
		ev.Addr = q.Addr.String()
	}
	return wire.NetQuestion{Place: ev.Place(), Proto: ev.Proto, Name: ev.Name, Addr: ev.Addr, Port: ev.Port,
		Since: q.Since, Until: q.Until, Waiting: q.Waiting}
}

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
	"github.com/coppice-dev/coppice/internal/gate/entrance"
	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/gate/wallet"
	"github.com/coppice-dev/coppice/internal/journal"
)

// mostMemory is the memory limit of the process, in bytes. The numbers of connections, requests and names are bounded;
// this bounds their size. A gate that reaches it exits, and then no connection passes. Normal use needs a tenth of it.
const mostMemory = 1 << 30

// bound limits the process to mostMemory.
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

// Main runs the gate process. It returns the exit code.
func Main() int {
	unix.CloseOnExec(control.ConnFD)
	unix.CloseOnExec(control.TouchFD)
	nameProcess(control.Argv0)
	// Keep other processes of the same user from tracing or reading this one.
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
	in, err := newInbox(conn)
	if err == nil {
		err = serve(in, os.Args[len(os.Args)-1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "coppice-gate:", err)
		return 1
	}
	return 0
}

// nameProcess names the calling thread. ps(1) and the kernel's log show the name of a process's first thread, which
// main starts on but may have left: nothing may depend on the name. Landlock denies /proc/self/comm, the reliable
// way.
func nameProcess(name string) {
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(unsafe.StringData(name+"\x00"))), 0, 0, 0)
}

// receive waits for the sockets from which the sandbox's packets or connections come: that of a link, or the two
// listeners of an entrance. It returns nil if the keeper has exited.
func receive(in *inbox) (from []*os.File, err error) {
	switch _, err := in.Read(make([]byte, 1)); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if from, in.files = in.files, nil; len(from) == 0 {
		return nil, fmt.Errorf("received no socket for packets: %w", unix.EBADMSG)
	}
	return from, nil
}

// serve starts the gate of a sandbox, and answers the keeper's requests until the keeper exits.
func serve(conn *inbox, sandbox string) error {
	from, err := receive(conn)
	if err != nil || from == nil {
		return err
	}
	in, out := json.NewDecoder(conn), json.NewEncoder(conn.conn)
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
		line, err := conn.take(q.Secrets)
		var ca []byte
		switch {
		case err != nil:
			return err
		case g == nil:
			g, ca, err = begin(q, sandbox, line, from)
		default:
			if q.Phases != nil {
				err = g.keepTo(q.Phases)
			}
			if q.Secrets != nil && err == nil {
				err = g.setSecrets(*q.Secrets, line)
			}
		}
		r := control.Failed(err)
		if r.CA = ca; g != nil {
			r.Now = g.now()
		}
		if out.Encode(r) != nil {
			return nil // the keeper has exited, which ends the gate
		}
	}
}

// begin starts the gate, and the entrance if from is its two listeners. ca is the certificate that the sandbox must
// trust, if any.
func begin(q control.Request, sandbox string, line *os.File, from []*os.File) (w *warden, ca []byte, err error) {
	defer func() {
		if w == nil && line != nil {
			line.Close()
		}
	}()
	if q.Journal == "" {
		return nil, nil, fault.New(fault.Internal, "the first request of a gate has no journal")
	}
	j, err := journal.Open(journal.Place{Dir: q.Journal, Key: q.Key})
	if err != nil {
		return nil, nil, err
	}
	w = &warden{sandbox: sandbox, wallet: wallet.New(time.Now), stops: q.Decoys.Stops, journal: j, clock: time.Now,
		stop:    make(chan struct{}),
		changed: make(chan struct{}, 1)}
	if err = w.take(q.Phases); err != nil {
		return nil, nil, errors.Join(err, j.Close())
	}
	if q.Secrets != nil {
		w.trustFor(*q.Secrets)
	}
	packets, box := from[0], (*os.File)(nil)
	if len(from) > 1 {
		if box, packets, err = link.Pair(); err != nil {
			return nil, nil, errors.Join(err, j.Close())
		}
	}
	// The policy is set with the first step; nothing passes before that.
	w.mu.Lock() // events reported meanwhile wait until w.gate is set
	var tokens []decoy.Token
	for _, t := range q.Decoys.Tokens {
		tokens = append(tokens, decoy.Token(t))
	}
	w.gate, err = gate.New(context.Background(),
		gate.Options{FD: packets, Report: w.report, Tokens: tokens, Wallet: w.wallet})
	inspects := w.inspects
	w.mu.Unlock()
	if err == nil && inspects {
		if ca, err = w.gate.CA(); err != nil {
			err = errors.Join(err, w.gate.Close())
		}
	}
	if err == nil && q.Secrets != nil {
		if err = w.setSecrets(*q.Secrets, line); err != nil {
			err = errors.Join(err, w.gate.Close())
			w.hangUp()
		}
	}
	if err != nil {
		if box != nil {
			err = errors.Join(err, box.Close())
		}
		return nil, nil, errors.Join(err, j.Close())
	}
	w.step()
	w.recordExpired()
	w.own.Go(w.keepTime)
	if box != nil {
		if w.entrance, err = entrance.New(box, from[0], from[1]); err != nil {
			w.close()
			return nil, nil, err
		}
	}
	return w, ca, nil
}

// settlePatience is how long a status request waits for the journal on a slow disk: much less than the keeper waits
// for the gate.
const settlePatience = time.Second

// now returns the state of the network. Earlier denials are in the journal by then, unless the disk is too slow.
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

// asking converts a question to its wire form.
func asking(q gate.Question) wire.NetQuestion {
	ev := wire.NetEvent{Proto: string(q.Proto), Name: q.Name, Port: int(q.Port), Question: questionOf(q.ID)}
	if q.Addr.IsValid() {
		ev.Addr = q.Addr.String()
	}
	return wire.NetQuestion{Place: ev.Place(), Proto: ev.Proto, Name: ev.Name, Addr: ev.Addr, Port: ev.Port,
		Since: q.Since, Until: q.Until, Waiting: q.Waiting, Grant: q.Grant, Method: q.Method, Path: q.Path}
}

// questionOf returns the place of a question about a grant, by its ID; "" for another question.
func questionOf(id string) string {
	if id == "" {
		return ""
	}
	return wire.GrantQuestion + id
}

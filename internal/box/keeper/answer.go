//go:build linux && (amd64 || arm64)

package keeper

import (
	"encoding/json"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
)

// answer handles one call.
func (k *keeper) answer(conn *net.UnixConn) {
	defer conn.Close()
	if !samePeer(conn) {
		return
	}
	k.enter(conn)
	defer k.leave(conn)
	t, p, err := wire.ReadFrame(conn, nil)
	if err != nil {
		return
	}
	var c protocol.Call
	if err := json.Unmarshal(p, &c); err != nil || t != wire.FrameRequest {
		fail(conn, fault.New(fault.Invalid, "unknown frame %d", t))
		return
	}
	if carry := streams[c.Op]; carry != nil {
		if err := carry(k, conn, c); err != nil {
			fail(conn, err)
		}
		return
	}
	do := requests[c.Op]
	if do == nil {
		fail(conn, fault.New(fault.Version, "unknown call %q", c.Op))
		return
	}
	v, err := do(k, conn, c)
	if err != nil {
		fail(conn, err)
		return
	}
	_ = reply(conn, v)
}

// enter records that a call begins: the box is busy.
func (k *keeper) enter(conn net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conns[conn] = true
	k.busy++
}

// leave records that a call ends.
func (k *keeper) leave(conn net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, conn)
	k.busy--
	k.idleFrom = time.Now()
}

// streams maps the calls that use their connection exclusively and write their own answers. A returned error was not
// sent yet.
var streams = map[string]func(*keeper, *net.UnixConn, protocol.Call) error{
	protocol.OpExec: func(k *keeper, conn *net.UnixConn, c protocol.Call) error {
		if c.Exec == nil {
			return fault.New(fault.Invalid, "malformed exec call: no request")
		}
		return k.exec(conn, *c.Exec)
	},
	protocol.OpFreeze: func(k *keeper, conn *net.UnixConn, _ protocol.Call) error { return k.freeze(conn) },
	protocol.OpRoot:   func(k *keeper, conn *net.UnixConn, _ protocol.Call) error { return k.showInside(conn) },
	protocol.OpDial:   func(k *keeper, conn *net.UnixConn, c protocol.Call) error { return k.dial(conn, c.Port) },
}

// requests maps the calls that have one answer. Some send frames before it, or watch for the caller to disconnect.
var requests = map[string]func(*keeper, *net.UnixConn, protocol.Call) (any, error){
	protocol.OpWait: func(k *keeper, conn *net.UnixConn, c protocol.Call) (any, error) {
		return k.await(conn, c.ExecID)
	},
	protocol.OpForget: func(k *keeper, _ *net.UnixConn, c protocol.Call) (any, error) {
		k.forgetEnded(c.ExecID)
		return nil, nil
	},
	protocol.OpActive: func(k *keeper, conn *net.UnixConn, c protocol.Call) (any, error) {
		return k.activity(conn, c.Since, k.clock, 0)
	},
	protocol.OpRan: func(k *keeper, conn *net.UnixConn, c protocol.Call) (any, error) {
		return k.activity(conn, c.Since, k.strictClock, lookIdle)
	},
	protocol.OpCount:  func(k *keeper, _ *net.UnixConn, _ protocol.Call) (any, error) { return k.count() },
	protocol.OpPing:   func(*keeper, *net.UnixConn, protocol.Call) (any, error) { return nil, nil },
	protocol.OpStatus: func(k *keeper, conn *net.UnixConn, _ protocol.Call) (any, error) { return k.status(conn) },
	protocol.OpSignal: func(k *keeper, _ *net.UnixConn, c protocol.Call) (any, error) {
		return nil, k.signal(c.ExecID, c.Signal)
	},
	protocol.OpPrograms: func(k *keeper, conn *net.UnixConn, c protocol.Call) (any, error) {
		return k.programsAfter(conn, c.Since, c.Kept, c.Now)
	},
	protocol.OpProcesses: func(k *keeper, _ *net.UnixConn, _ protocol.Call) (any, error) {
		return k.list(initlink.Look{What: initlink.LookProcesses})
	},
	protocol.OpSignalProcess: func(k *keeper, _ *net.UnixConn, c protocol.Call) (any, error) {
		return nil, k.signalProcess(c.PID, c.Start, c.Signal)
	},
	protocol.OpPorts: func(k *keeper, _ *net.UnixConn, c protocol.Call) (any, error) {
		return k.list(initlink.Look{What: initlink.LookPorts, Port: c.Port})
	},
	protocol.OpPolicy: func(k *keeper, _ *net.UnixConn, c protocol.Call) (any, error) {
		return nil, k.setPolicy(c.Phases)
	},
	protocol.OpSecrets: func(k *keeper, _ *net.UnixConn, c protocol.Call) (any, error) {
		if c.Secrets == nil {
			return nil, fault.New(fault.Invalid, "malformed call: no grants")
		}
		return nil, k.setSecrets(*c.Secrets)
	},
	protocol.OpNet: func(k *keeper, _ *net.UnixConn, _ protocol.Call) (any, error) { return k.network() },
	protocol.OpRekey: func(k *keeper, _ *net.UnixConn, c protocol.Call) (any, error) {
		return k.answerRekey(c.Rekey)
	},
	protocol.OpRelease: func(k *keeper, _ *net.UnixConn, _ protocol.Call) (any, error) { return nil, k.release() },
	protocol.OpPause:   func(k *keeper, _ *net.UnixConn, _ protocol.Call) (any, error) { return nil, k.pause() },
	protocol.OpResume:  func(k *keeper, _ *net.UnixConn, _ protocol.Call) (any, error) { return nil, k.resume() },
	protocol.OpCancel: func(k *keeper, _ *net.UnixConn, c protocol.Call) (any, error) {
		return nil, k.cancel(c.ExecID)
	},
	protocol.OpInput: func(k *keeper, conn *net.UnixConn, c protocol.Call) (any, error) {
		return nil, k.input(conn, c.ExecID)
	},
	protocol.OpStop: func(k *keeper, _ *net.UnixConn, c protocol.Call) (any, error) {
		return nil, k.stopAll(c.Grace)
	},
}

// answerRekey returns the steps of a rekey even if it failed: the error is part of the answer.
func (k *keeper) answerRekey(r *protocol.Rekey) (done initlink.Rekeyed, err error) {
	if r == nil {
		return done, fault.New(fault.Invalid, "malformed re-key call: no identity")
	}
	if done.Steps, err = k.rekey(*r); err != nil {
		f := wire.Error(*protocol.FailureOf(err))
		done.Err = &f
	}
	return done, nil
}

// reply answers with v. If v does not fit into a frame, it answers with a protocol.Failure, which it also returns: a
// caller without an answer would assume that the keeper has exited.
func reply(conn net.Conn, v any) error {
	b, err := json.Marshal(v)
	if err == nil && len(b) > wire.MaxFrame {
		err = fault.New(fault.TooLarge, "the answer of the monitor has %d bytes, more than the limit of %d",
			len(b), wire.MaxFrame)
	}
	if err != nil {
		fail(conn, err)
		return err
	}
	return wire.WriteFrame(conn, protocol.FrameReply, b)
}

func fail(conn net.Conn, err error) {
	_ = wire.WriteJSON(conn, wire.FrameFailed, protocol.FailureOf(err))
}

// samePeer admits the user that runs the keeper, and root.
func samePeer(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	_ = raw.Control(func(fd uintptr) {
		c, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		ok = err == nil && (int(c.Uid) == os.Getuid() || c.Uid == 0)
	})
	return ok
}

// status sends each command in a separate frame, and returns the rest.
func (k *keeper) status(conn net.Conn) (protocol.Status, error) {
	n, err := k.count()
	if err != nil {
		return protocol.Status{}, err
	}
	k.mu.Lock()
	s := protocol.Status{
		ID: k.config.ID, PID: os.Getpid(), Started: k.started, Enforced: k.enforced, Procs: n, Paused: k.paused != nil,
	}
	execs := slices.Collect(maps.Values(k.execs))
	k.mu.Unlock()
	for _, e := range execs {
		if err := wire.WriteJSON(conn, protocol.FrameExec, e.status()); err != nil {
			return s, err
		}
	}
	return s, nil
}

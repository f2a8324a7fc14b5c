//go:build linux && (amd64 || arm64)

package keeper

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/plan"
)

// receive handles the messages of init.
func (k *keeper) receive() {
	defer close(k.over)
	for {
		m, err := k.link.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, "coppice-keeper:", err)
			}
			return
		}
		if k.config.Tier == plan.TierGvisor {
			closeStray(&m)
		}
		switch m.Kind {
		case initlink.MsgSpawned:
			var s initlink.Spawned
			if err := m.Decode(&s); err != nil {
				fmt.Fprintln(os.Stderr, "coppice-keeper:", err)
				return
			}
			k.spawned(s, m.FDs)
		case initlink.MsgExited:
			var x initlink.Exited
			if err := m.Decode(&x); err != nil {
				fmt.Fprintln(os.Stderr, "coppice-keeper:", err)
				return
			}
			k.mu.Lock()
			e := k.byPID[x.PID]
			delete(k.byPID, x.PID)
			k.mu.Unlock()
			if e != nil {
				k.recordKilled(e, unix.WaitStatus(x.Status))
				e.exited(x)
			}
		case initlink.MsgSelf:
			k.serveSelf(m)
		case initlink.MsgRefused:
			var r initlink.Refused
			if err := m.Decode(&r); err != nil {
				fmt.Fprintln(os.Stderr, "coppice-keeper:", err)
				return
			}
			k.recordRefused(r)
		case initlink.MsgPrograms:
			var p initlink.Programs
			if err := m.Decode(&p); err != nil {
				fmt.Fprintln(os.Stderr, "coppice-keeper:", err)
				return
			}
			k.programs.add(p)
		case initlink.MsgUnknown:
			k.unknown(m)
		case initlink.MsgSeen:
			if err := k.looks.answer(m); err != nil {
				fmt.Fprintln(os.Stderr, "coppice-keeper:", err)
				return
			}
		default:
			k.answered(m)
		}
	}
}

// answered passes on a message that may be the answer to askWith, which takes the first one. It drops a message for
// which no caller waits, so that an init that sends answers without a request blocks nothing.
func (k *keeper) answered(m initlink.Message) {
	select {
	case k.answers <- m: // has room for one
	default:
		m.Close()
	}
}

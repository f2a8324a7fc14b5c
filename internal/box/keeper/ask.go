//go:build linux && (amd64 || arm64)

package keeper

import (
	"fmt"
	"os"
	"time"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
)

// ask sends a message to init and decodes its answer into v.
func (k *keeper) ask(kind initlink.Kind, v any) error { return k.askWith(kind, nil, v) }

// askWith is ask with a payload. A sandbox may starve or block its init. If init does not answer in time, the box is
// killed, since it could no longer be frozen or inspected.
func (k *keeper) askWith(kind initlink.Kind, q, v any, fds ...int) error {
	k.asking.Lock()
	defer k.asking.Unlock()
	select {
	case <-k.answers: // an answer without a request
	default:
	}
	k.asked.Store(uint32(kind))
	defer k.asked.Store(0)
	switch err := k.link.Send(kind, q, fds...); {
	case initlink.NotPassed(err):
		return fault.OfHost(err)
	case err != nil:
		return fault.New(fault.Unavailable, "the sandbox's init has exited").Because(err)
	}
	late := k.patienceFor(kind)
	tick := time.NewTicker(max(late/answerTicks, 1))
	defer tick.Stop()
	for left := answerTicks; ; {
		select {
		case <-tick.C:
			// Ticks are dropped while this process does not run, as during a suspend of the machine.
			if k.iced.Load() {
				continue // init is frozen with its control group, and answers after the thaw
			}
			if left--; left > 0 {
				continue
			}
			k.halt("its init did not respond within " + late.String())
			return fault.New(fault.Timeout, "the sandbox's init did not respond within %v; its processes were killed", late)
		case m := <-k.answers:
			return decode(kind, m, v)
		case <-k.over:
			return fault.New(fault.Unavailable, "the sandbox's init has exited")
		}
	}
}

// answerTicks is the number of ticks into which the time to answer is divided.
const answerTicks = 20

// decode decodes an answer into v unless v is nil.
func decode(kind initlink.Kind, m initlink.Message, v any) error {
	if m.Kind == initlink.MsgUnknown {
		var u initlink.Unknown
		if err := m.Decode(&u); err != nil || u.Err == nil {
			return fault.New(fault.Version, "the sandbox's init does not support message %q", byte(kind)).Because(err)
		}
		return (*protocol.Failure)(u.Err).Fault()
	}
	if v == nil {
		return nil
	}
	return m.Decode(v)
}

// patienceFor returns how long init may take to answer a message.
func (k *keeper) patienceFor(kind initlink.Kind) time.Duration {
	switch kind {
	case initlink.MsgSave:
		return k.savePatience
	case initlink.MsgRekey:
		return k.rekeyPatience
	}
	return k.answerPatience
}

// unknown handles the reply of an init that does not know a message. If a caller of ask waits for the answer to that
// message, it gets the reply; other messages have no answer.
func (k *keeper) unknown(m initlink.Message) {
	var u initlink.Unknown
	if err := m.Decode(&u); err == nil && uint32(u.Kind) == k.asked.Load() {
		k.answered(m)
		return
	}
	k.misses.Do(func() { fmt.Fprintf(os.Stderr, "coppice-keeper: init does not know message %q\n", byte(u.Kind)) })
}

func (k *keeper) count() (int, error) {
	if p := k.isPaused(); p != nil {
		return p.Procs, nil
	}
	var c initlink.Counted
	err := k.ask(initlink.MsgCount, &c)
	return c.Procs, err
}

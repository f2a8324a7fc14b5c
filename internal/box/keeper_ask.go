//go:build linux && (amd64 || arm64)

package box

import (
	"fmt"
	"os"

	"github.com/coppice-dev/coppice/internal/box/guest"
	"github.com/coppice-dev/coppice/internal/fault"
)

// ask sends a message to init and decodes its answer into v.
func (k *keeper) ask(kind guest.Kind, v any) error { return k.askWith(kind, nil, v) }

// askWith is ask with something to say.
func (k *keeper) askWith(kind guest.Kind, q, v any, fds ...int) error {
	k.asking.Lock()
	defer k.asking.Unlock()
	k.asked.Store(uint32(kind))
	defer k.asked.Store(0)
	if err := k.link.Send(kind, q, fds...); err != nil {
		return fault.New(fault.Unavailable, "the sandbox's init has ended").Because(err)
	}
	select {
	case m := <-k.answers:
		if m.Kind == guest.MsgUnknown {
			var u guest.Unknown
			if err := m.Decode(&u); err != nil || u.Err == nil {
				return fault.New(fault.Version, "the sandbox's init does not know message %q", byte(kind)).Because(err)
			}
			return (*failure)(u.Err).fault()
		}
		if v == nil {
			return nil
		}
		return m.Decode(v)
	case <-k.over:
		return fault.New(fault.Unavailable, "the sandbox's init has ended")
	}
}

// unknown takes the word of an init that it does not know a message. Whoever asked gets it as
// the answer; nobody waits for that to any other message.
func (k *keeper) unknown(m guest.Message) {
	var u guest.Unknown
	if err := m.Decode(&u); err == nil && uint32(u.Kind) == k.asked.Load() {
		select {
		case k.answers <- m:
		case <-k.stop:
		}
		return
	}
	k.misses.Do(func() { fmt.Fprintf(os.Stderr, "coppice-keeper: init does not know message %q\n", byte(u.Kind)) })
}

func (k *keeper) count() (int, error) {
	if p := k.isPaused(); p != nil {
		return p.Procs, nil
	}
	var c guest.Counted
	err := k.ask(guest.MsgCount, &c)
	return c.Procs, err
}

//go:build linux && (amd64 || arm64)

package relay

import (
	"encoding/json"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
)

// commands are the running commands inside, with their streams, as learned from the messages that pass the inside's
// relay. The zero value is ready to use.
type commands struct {
	mu      sync.Mutex
	asked   []*command       // not yet answered
	live    map[int]*command // by pid
	dropped []initlink.Kind  // answers to discard
}

// command is one that was started.
type command struct {
	adopt   initlink.Adopt
	streams []named
}

// named is a stream of a command.
type named struct {
	name   string // as in initlink.Adopt
	stream *stream
	over   bool
}

// came handles a message for init. taken reports that it was for the relay itself.
func (c *commands) came(r *Relay, m initlink.Message, fresh []*stream) (taken bool) {
	switch m.Kind {
	case initlink.MsgSpawn:
		var s initlink.Spawn
		if m.Decode(&s) != nil {
			return false // init refuses it
		}
		n := &command{adopt: initlink.Adopt{Exec: s.Exec, Cmd: s.Cmd, TTY: s.TTY, Env: s.Env}}
		for i, f := range fresh {
			if i < len(initlink.Pipes) {
				n.streams = append(n.streams, named{name: initlink.Pipes[i], stream: f})
			}
		}
		c.mu.Lock()
		c.asked = append(c.asked, n)
		c.mu.Unlock()
	case initlink.MsgResize:
		var z initlink.Resize
		if m.Obey(&z) == nil {
			if t := c.terminal(z.PID); t != nil {
				_ = t.control(func(fd int) error {
					return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: z.Rows, Col: z.Cols})
				})
			}
		}
		return true
	case initlink.MsgKill:
		var k initlink.Kill
		if m.Obey(&k) != nil || k.Whom != initlink.KillForeground { // init refuses it
			return false
		}
		if t := c.terminal(k.PID); t != nil {
			if t.control(func(fd int) error { return typeSignal(fd, unix.Signal(k.Signal)) }) == nil {
				return true
			}
		}
		k.Whom = initlink.KillGroup
		_ = r.link.Send(initlink.MsgKill, k)
		return true
	}
	return false
}

// typeSignal types the character with which a terminal sends a signal to its foreground group. GVisor does not reveal
// that group to the holder of the master.
func typeSignal(fd int, sig unix.Signal) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	at, ok := map[unix.Signal]int{unix.SIGINT: unix.VINTR, unix.SIGQUIT: unix.VQUIT, unix.SIGTSTP: unix.VSUSP}[sig]
	if !ok || t.Lflag&unix.ISIG == 0 || t.Cc[at] == 0 {
		return unix.ENOTSUP
	}
	_, err = unix.Write(fd, t.Cc[at:at+1])
	return err
}

// terminal returns the stream of a command's terminal, or nil.
func (c *commands) terminal(pid int) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.live[pid]; n != nil {
		for _, s := range n.streams {
			if s.name == initlink.Terminal {
				return s.stream
			}
		}
	}
	return nil
}

// sent handles a message from init, and returns the payload to send to the outside.
func (c *commands) sent(m initlink.Message, fresh []*stream) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch m.Kind {
	case initlink.MsgSpawned:
		var s initlink.Spawned
		if len(c.asked) == 0 || m.Decode(&s) != nil {
			return m.Payload
		}
		n := c.asked[0]
		c.asked = c.asked[1:]
		if s.PID == 0 {
			return m.Payload
		}
		if len(fresh) == 1 {
			n.streams = []named{{name: initlink.Terminal, stream: fresh[0]}}
		}
		n.adopt.PID = s.PID
		if c.live == nil {
			c.live = map[int]*command{}
		}
		c.live[s.PID] = n
	case initlink.MsgExited:
		var x initlink.Exited
		if m.Decode(&x) != nil || c.live[x.PID] == nil {
			return m.Payload
		}
		n := c.live[x.PID]
		delete(c.live, x.PID)
		x.Written = make([]int64, 2)
		for _, s := range n.streams {
			switch s.name {
			case initlink.Terminal:
				s.stream.orphan()
				x.Written[0] = s.stream.outstanding()
			case initlink.Pipes[0]:
				x.Written[0] = s.stream.outstanding()
			case initlink.Pipes[1]:
				x.Written[1] = s.stream.outstanding()
			}
		}
		if b, err := json.Marshal(x); err == nil {
			return b
		}
	}
	return m.Payload
}

// drop forgets a stream that is over.
func (c *commands) drop(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.live {
		for i := range n.streams {
			n.streams[i].over = n.streams[i].over || n.streams[i].stream == s
		}
	}
}

// swallow discards the next message of that kind.
func (c *commands) swallow(k initlink.Kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped = append(c.dropped, k)
}

// forNobody reports whether a message from init must be discarded, once for each call of swallow.
func (c *commands) forNobody(k initlink.Kind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.dropped, k)
	if i < 0 {
		return false
	}
	c.dropped = slices.Delete(c.dropped, i, i+1)
	return true
}

// adopted is a message Adopt.
type adopted struct {
	fds     []travelling
	payload []byte
}

// adopt returns an Adopt message for each running command. know assigns a number to a stream.
func (c *commands) adopt(know func(*stream) travelling) (all []adopted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = nil
	for _, n := range c.live {
		var a adopted
		says := n.adopt
		for _, s := range n.streams {
			if s.over {
				continue
			}
			says.Has = append(says.Has, s.name)
			a.fds = append(a.fds, know(s.stream))
		}
		b, err := json.Marshal(says)
		if err != nil {
			continue
		}
		a.payload = b
		all = append(all, a)
	}
	return all
}

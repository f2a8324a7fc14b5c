package lineapi

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secretbox"
)

const (
	// maxSpawned is the maximum number of spawned commands that run.
	maxSpawned = 256
	// killGrace is the time between SIGTERM and SIGKILL, and killWait the time limit for the command to exit
	// after that.
	killGrace = 2 * time.Second
	killWait  = 10 * time.Second
	// logDir is a directory that is not in the history, and that every user can write.
	logDir = "/tmp/"
	// background makes a login shell create the file of its output, which must not exist, and replace itself with
	// the command.
	background = `set -C; exec >"$1" 2>&1; set +C; if command -v bash >/dev/null 2>&1; then exec bash -lc "$2"; fi; exec sh -lc "$2"`
)

// proc is a spawned command that, as far as is known, still runs.
type proc struct {
	PID  int    `json:"pid"` // inside
	Args string `json:"args"`
	Log  string `json:"log"` // path inside
	Exec string `json:"exec,omitempty"`

	stream *stream
	input  *io.PipeWriter
	done   chan struct{} // closed when the command exits, or is no longer tracked
}

// spawned tracks the spawned commands of a Server.
type spawned struct {
	mu  sync.Mutex
	all []*proc // guarded by mu; in the order of their start
}

type spawnAnswer struct {
	PID int    `json:"pid"`
	Log string `json:"log"`
}

// spawn starts a command without waiting for it. Its changes become a snapshot when it exits.
func (c *conn) spawn(q cmdRequest) (any, error) {
	if err := q.check("spawn"); err != nil {
		return nil, err
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	word, stdin := script(q.Cmd)
	p := &proc{Args: cut(q.Cmd, maxLabel), Log: logDir + "coppice-spawn-" + hex.EncodeToString(id[:]) + ".log"}
	req := wire.ExecRequest{Cmd: []string{"sh", "-c", background, "sh", p.Log, word}, Stdin: stdin != nil, Label: p.Args}
	if !c.procs.reserve(p) {
		return nil, fault.New(fault.Conflict, "too many spawned commands: %d", maxSpawned).
			WithHint(`stop one: {"op":"kill","pid":N}`)
	}
	ended := c.look(p, req, stdin)
	select {
	case <-p.stream.begun: // start does not change after that
		c.procs.started(p)
		c.remember()
		return spawnAnswer{p.PID, p.Log}, nil
	case err := <-ended:
		if err == nil {
			err = fault.New(fault.NotFound, "sh not found in the sandbox")
		}
		return nil, err
	}
}

// look tracks a command until it exits. The returned channel receives the error of the exec.
func (s *Server) look(p *proc, req wire.ExecRequest, stdin io.Reader) <-chan error {
	r, w := io.Pipe()
	if stdin == nil {
		stdin = bytes.NewReader(nil)
	}
	p.stream, p.input, p.done = newStream(io.MultiReader(stdin, r), nil), w, make(chan struct{})
	ended := make(chan error, 1)
	s.work.Go(func() {
		defer close(p.done)
		unhook := context.AfterFunc(s.ctx, func() { w.Close() })
		defer unhook()
		go func() { <-p.stream.end; r.Close() }() // the engine has stopped reading
		_, err := s.opt.Engine.Exec(s.ctx, s.opt.Sandbox, req, p.stream)
		_ = p.stream.SetReadDeadline(time.Time{})
		if err == nil || s.ctx.Err() == nil {
			s.procs.drop(p)
			s.remember()
		}
		ended <- err
	})
	return ended
}

type psAnswer struct {
	Procs []*shown `json:"procs"`
}

type shown struct {
	PID  int    `json:"pid"`
	Args string `json:"args"`
	Log  string `json:"log"`
}

// ps lists spawned commands that run.
func (c *conn) ps(none) (any, error) {
	c.procs.mu.Lock()
	defer c.procs.mu.Unlock()
	list := []*shown{}
	for _, p := range c.procs.all {
		if p.PID != 0 {
			list = append(list, &shown{p.PID, p.Args, p.Log})
		}
	}
	return psAnswer{list}, nil
}

// kill kills the process group of a spawned command.
func (c *conn) kill(q struct {
	PID int `json:"pid"`
}) (any, error) {
	if q.PID == 0 {
		return nil, missingField("kill", "pid", "the number that spawn returned")
	}
	p := c.procs.find(q.PID)
	if p == nil {
		return nil, fault.New(fault.NotFound, "spawned command %d not found", q.PID).
			WithHint(`list them: {"op":"ps"}`)
	}
	for _, try := range []struct {
		signal string
		wait   time.Duration
	}{{"TERM", killGrace}, {"KILL", killWait}} {
		if err := wire.WriteJSON(p.input, wire.FrameSignal, wire.Signal{Name: try.signal}); err != nil &&
			!errors.Is(err, io.ErrClosedPipe) {
			return nil, err
		}
		t := time.NewTimer(try.wait)
		select {
		case <-p.done:
			t.Stop()
			return none{}, nil
		case <-t.C:
		}
	}
	return nil, fault.New(fault.Timeout, "command %d did not exit", q.PID)
}

// reserve adds a command, unless there are too many.
func (s *spawned) reserve(p *proc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) >= maxSpawned {
		return false
	}
	s.all = append(s.all, p)
	return true
}

func (s *spawned) started(p *proc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.PID, p.Exec = p.stream.start.PID, p.stream.start.Exec
}

func (s *spawned) drop(p *proc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(q *proc) bool { return q == p })
}

func (s *spawned) find(pid int) *proc {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.all, func(p *proc) bool { return p.PID == pid }); i >= 0 {
		return s.all[i]
	}
	return nil
}

// remember stores the running commands for the next server. A failure only matters to that one.
func (s *Server) remember() {
	if s.opt.Spawned == "" {
		return
	}
	s.procs.mu.Lock()
	defer s.procs.mu.Unlock()
	b, err := s.sealed(s.procs.all)
	if len(s.procs.all) == 0 {
		err = os.Remove(s.opt.Spawned)
	} else if err == nil {
		if err = os.WriteFile(s.opt.Spawned+".new", b, 0o600); err == nil {
			err = os.Rename(s.opt.Spawned+".new", s.opt.Spawned)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.opt.Log.Warn("could not store the spawned commands", "sandbox", s.opt.Sandbox, "err", err)
	}
}

// forSpawned is the purpose for which the file of spawned commands is encrypted.
const forSpawned = "spawned"

// sealed encodes a list of commands for the file.
func (s *Server) sealed(list []*proc) ([]byte, error) {
	b, err := json.Marshal(list)
	if err != nil || len(s.opt.Key) == 0 {
		return b, err
	}
	key, err := secretbox.New(s.opt.Key)
	if err != nil {
		return nil, err
	}
	text, err := key.Seal(forSpawned, b)
	return []byte(text), err
}

// unsealed decodes the output of sealed, or that of a build without keys.
func (s *Server) unsealed(b []byte) (list []*proc, err error) {
	if text := string(b); secretbox.Is(text) {
		key, err := secretbox.New(s.opt.Key)
		if err != nil {
			return nil, err
		}
		if b, err = key.Open(forSpawned, text); err != nil {
			return nil, err
		}
	}
	return list, json.Unmarshal(b, &list)
}

// takeUp tracks the commands that an earlier server spawned, and forgets those that have exited.
func (s *Server) takeUp() {
	if s.opt.Spawned == "" {
		return
	}
	b, err := os.ReadFile(s.opt.Spawned)
	if err != nil {
		return // the file does not exist
	}
	all, err := s.unsealed(b)
	if err != nil {
		s.opt.Log.Warn("could not read the spawned commands", "sandbox", s.opt.Sandbox, "err", err)
		return
	}
	for _, p := range all {
		if p.Exec != "" && s.procs.reserve(p) {
			s.look(p, wire.ExecRequest{Attach: p.Exec, Label: p.Args}, nil)
		}
	}
}

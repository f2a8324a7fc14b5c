//go:build linux && (amd64 || arm64)

package box

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secretbox"
)

// Programs returns the starts and exits of programs in the box after event number after; 0 precedes all. It
// waits until there is one. If the box is being stopped it returns an Unavailable fault. Where
// plan.Config.Trace or tier supervised records programs, no program starts without an event (protection
// "programs" is on), and all events that precede the exit of an exec are available before that exit is
// reported.
//
// The keeper holds the newest events, some megabytes of them, and counts those that it has dropped. kept is
// the number of the last event that the caller has stored: events after it are left in a file when the keeper
// exits (LeftPrograms).
func (b *Box) Programs(ctx context.Context, after, kept uint64) (wire.ProgramEvents, error) {
	return b.programs(ctx, protocol.Call{Op: protocol.OpPrograms, Since: after, Kept: kept})
}

// ProgramsNow is like Programs, but does not wait.
func (b *Box) ProgramsNow(ctx context.Context, after, kept uint64) (wire.ProgramEvents, error) {
	return b.programs(ctx, protocol.Call{Op: protocol.OpPrograms, Since: after, Kept: kept, Now: true})
}

func (b *Box) programs(ctx context.Context, c protocol.Call) (wire.ProgramEvents, error) {
	var p protocol.ProgramsReply
	if err := b.call(ctx, c, &p); err != nil {
		return wire.ProgramEvents{}, anotherVersion(err)
	}
	return eventsOf(p), nil
}

// LeftPrograms returns the events that were not yet stored when the last keeper exited. secret is the
// plan.Config.JournalKey of that keeper. NotFound means that there are none: no program started, the keeper
// was killed, or ForgetPrograms was called. Corrupt means that they cannot be read.
func LeftPrograms(runDir string, secret []byte) (wire.ProgramEvents, error) {
	p, err := readLeft(runDir, secret)
	if errors.Is(err, fs.ErrNotExist) {
		return wire.ProgramEvents{}, fault.New(fault.NotFound, "no record of programs in %s", runDir)
	}
	return eventsOf(p), fault.Wrap(err, "read the record of programs in %s", runDir)
}

// ForgetPrograms removes the events that LeftPrograms returns. It may be called again.
func ForgetPrograms(runDir string) error {
	err := os.Remove(filepath.Join(runDir, protocol.LeftName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fault.Wrap(err, "remove the record of programs in %s", runDir)
}

func readLeft(runDir string, secret []byte) (p protocol.ProgramsReply, err error) {
	b, err := os.ReadFile(filepath.Join(runDir, protocol.LeftName))
	if err == nil && len(secret) > 0 {
		var key secretbox.Key
		if key, err = secretbox.New(secret); err == nil {
			b, err = key.Open(protocol.LeftName, string(b))
		}
		if err != nil {
			err = fault.New(fault.Corrupt, "cannot open %s", protocol.LeftName).Because(err)
		}
	}
	if err == nil && json.Unmarshal(b, &p) != nil {
		err = fault.New(fault.Corrupt, "%s is damaged", protocol.LeftName)
	}
	return p, err
}

// eventsOf converts the events of an answer to wire events.
func eventsOf(p protocol.ProgramsReply) wire.ProgramEvents {
	out := wire.ProgramEvents{Events: make([]wire.ProgramEvent, len(p.Events)), Next: p.Next, Dropped: p.Dropped}
	for i, e := range p.Events {
		out.Events[i].Seq = e.Seq
		if e.Began != nil {
			out.Events[i].Began = startedProgram(e.Began)
		}
		if e.Ended != nil {
			out.Events[i].Ended = endedProgram(e.Ended)
		}
	}
	return out
}

func startedProgram(n *initlink.Program) *wire.StartedProgram {
	s := &wire.StartedProgram{
		ID: n.ID, PID: n.PID, PPID: n.PPID, Parent: n.Parent, Before: n.Before, Exec: n.Exec,
		Exe: text(n.Exe), Cut: n.Cut, Dir: text(n.Dir), Started: n.Started, Asked: n.Asked, Lost: n.Lost,
	}
	if !utf8.Valid(n.Exe) {
		s.ExeRaw = n.Exe
	}
	if !utf8.Valid(n.Dir) {
		s.DirRaw = n.Dir
	}
	var raw [][]byte
	if len(n.Args) > 0 {
		raw = bytes.Split(bytes.TrimSuffix(n.Args, []byte{0}), []byte{0})
	}
	s.Args = make([]string, len(raw))
	for i, a := range raw {
		if s.Args[i] = text(a); !utf8.Valid(a) {
			s.ArgsRaw = raw
		}
	}
	return s
}

func endedProgram(n *initlink.ProgramEnded) *wire.EndedProgram {
	e := &wire.EndedProgram{ID: n.ID, At: n.At, Next: n.Next}
	switch {
	case n.Next != 0:
	case n.Status == nil:
		e.Unknown = true
	default:
		ws := unix.WaitStatus(*n.Status)
		if e.Code = ws.ExitStatus(); ws.Signaled() {
			e.Code, e.Signal = 128+int(ws.Signal()), strings.TrimPrefix(unix.SignalName(ws.Signal()), "SIG")
		}
	}
	return e
}

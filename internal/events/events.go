//go:build linux

// Package events defines how the engine reports what happens in sandboxes: the constructors of events, and the bus
// that carries them to listeners. An event is sent after the operation is recorded, and is not a record: a slow
// listener, or a daemon that exits, loses events.
//
// The engine emits events; the daemon offers Bus to the HTTP API.
package events

import (
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// About returns an event of a sandbox without details.
func About(rec *meta.Sandbox, kind string) wire.SandboxEvent {
	return wire.SandboxEvent{Kind: kind, Sandbox: rec.Name, ID: string(rec.ID)}
}

// Snapshot returns the event of a new snapshot.
func Snapshot(rec *meta.Sandbox, snap timeline.Snapshot) wire.SandboxEvent {
	ev := About(rec, wire.EventSnapshot)
	ev.Snapshot, ev.Parent = string(snap.ID), string(snap.Parent)
	ev.Message, ev.Cause = snap.Message, string(snap.Cause)
	ev.Exit, ev.Paths, ev.Bytes = snap.Exit, snap.Stats.Paths, snap.Stats.Bytes
	return ev
}

// Created returns the event of a new sandbox.
func Created(rec *meta.Sandbox) wire.SandboxEvent {
	ev := About(rec, wire.EventCreated)
	ev.Snapshot, ev.Detail = string(rec.Head), rec.From
	return ev
}

// Forked returns the events of forks from a snapshot of parent: one of parent, then one of each fork.
func Forked(parent *meta.Sandbox, at timeline.SnapshotID, forks []meta.Sandbox) []wire.SandboxEvent {
	ev := About(parent, wire.EventFork)
	names := make([]string, len(forks))
	for i := range forks {
		names[i] = forks[i].Name
	}
	ev.Snapshot, ev.Detail = string(at), strings.Join(names, " ")
	all := []wire.SandboxEvent{ev}
	for i := range forks {
		all = append(all, Created(&forks[i]))
	}
	return all
}

// Started returns the event of a start of the supervised command. message is its redacted command line, as for
// Exec, Limits and Exited.
func Started(rec *meta.Sandbox, run *wire.Run, message string) wire.SandboxEvent {
	ev := About(rec, wire.EventRun)
	if run.Starts > 1 {
		ev.Kind = wire.EventRestarted
	}
	ev.Exec, ev.Message = run.Exec, message
	if run.Exit != nil {
		ev.Exit, ev.Detail = &run.Exit.Code, run.Exit.Message
	}
	return ev
}

// Exec returns the event of the start of a command other than the supervised one, with the ID exec.
func Exec(rec *meta.Sandbox, exec, message string) wire.SandboxEvent {
	ev := About(rec, wire.EventExec)
	ev.Exec, ev.Message = exec, message
	return ev
}

// LimitsOf returns the limits that a command reached, alone or together with other processes.
func LimitsOf(x wire.Exit) []string {
	if x.Limit == "" {
		return x.Hits
	}
	return append([]string{x.Limit}, x.Hits...)
}

// Limits returns the events of the limits that a command reached.
func Limits(rec *meta.Sandbox, exec, message string, x wire.Exit) (all []wire.SandboxEvent) {
	for _, limit := range LimitsOf(x) {
		ev := About(rec, wire.EventLimit)
		ev.Exec, ev.Message, ev.Exit, ev.Detail = exec, message, &x.Code, limit
		all = append(all, ev)
	}
	return all
}

// Exited returns the event of the exit of a command.
func Exited(rec *meta.Sandbox, exec, message string, x wire.Exit) wire.SandboxEvent {
	ev := About(rec, wire.EventExited)
	ev.Exec, ev.Message, ev.Exit, ev.Paths, ev.Detail = exec, message, &x.Code, x.Paths, x.Message
	if x.Changed {
		ev.Snapshot = x.Snapshot
	}
	return ev
}

// Moved returns the event of a change of HEAD; what names the command that requested it.
func Moved(rec *meta.Sandbox, m wire.MoveResult, what string) wire.SandboxEvent {
	ev := About(rec, wire.EventCheckout)
	ev.Snapshot, ev.Parent, ev.Message, ev.Detail = m.Head, m.From, m.Message, what
	return ev
}

// Tagged returns the event of a change of a tag. at is the tagged snapshot, or "" if the tag was deleted.
func Tagged(rec *meta.Sandbox, tag string, at timeline.SnapshotID) wire.SandboxEvent {
	ev := About(rec, wire.EventTag)
	ev.Message, ev.Snapshot = tag, string(at)
	return ev
}

// Dropped returns the event of the deletion of a snapshot. why is "" if a user requested it.
func Dropped(rec *meta.Sandbox, snap timeline.Snapshot, why string) wire.SandboxEvent {
	ev := About(rec, wire.EventDeleted)
	ev.Snapshot, ev.Parent = string(snap.ID), string(snap.Parent)
	ev.Message, ev.Cause, ev.Detail = snap.Message, string(snap.Cause), why
	return ev
}

//go:build linux

package engine

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// sessions returns the events of the session records of a sandbox, on one line.
func (h *home) sessions(name string) string {
	var out []string
	for _, r := range h.told(h.id(name), format.KindSession) {
		out = append(out, r.Body.(*format.Session).Event)
	}
	return strings.Join(out, " ")
}

// TestTerminal_RecordsAttachAndDetachOnce checks that the attach of the client that starts a command at a
// terminal is recorded with the start, and its detach once: at the exit, or earlier if the client disconnects.
func TestTerminal_RecordsAttachAndDetachOnce(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	h.run("a", "true")
	tty := wire.ExecRequest{Cmd: []string{"true"}, TTY: true}

	before := h.kinds(h.id("a"))
	client, server := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, client) }()
	if _, err := h.Exec(ctx, "a", tty, server); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimPrefix(h.kinds(h.id("a")), before); got != " exec session exit session" {
		t.Errorf("%q", got)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}

	// The client is disconnected from the start.
	if _, err := h.Exec(ctx, "a", tty, stream{strings.NewReader(""), io.Discard}); err != nil {
		t.Fatal(err)
	}
	if got := h.sessions("a"); got != "attached left attached left" {
		t.Errorf("%q", got)
	}

	// A command that did not start has no attach.
	box := h.box("a")
	box.refusing.Store(true)
	before = h.kinds(h.id("a"))
	if _, err := h.Exec(ctx, "a", tty, stream{strings.NewReader(""), io.Discard}); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	if got := strings.TrimPrefix(h.kinds(h.id("a")), before); got != " exec session undone undone" {
		t.Errorf("%q", got)
	}
	box.refusing.Store(false)

	// A command without a terminal has no session record.
	was := h.sessions("a")
	h.run("a", "true")
	if got := h.sessions("a"); got != was {
		t.Errorf("%q", got)
	}
}

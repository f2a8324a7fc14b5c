//go:build linux

package engine

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// secretValue has no five consecutive characters that a digest, a signature or an id may contain by chance: each such
// part has a character that base64 does not use.
const secretValue = "cor~rect!hor~se-b!att~ery!sta~ple~Zq8!Vx~T"

// leaks reports whether text contains a part of the secret that is too long to be there by chance.
func leaks(text []byte, secret string) bool {
	const part = 5
	for i := range len(secret) - part + 1 {
		if bytes.Contains(text, []byte(secret[i:i+part])) {
			return true
		}
	}
	return false
}

// printing runs a fake command that writes out, and returns its exit record.
func (h *home) printing(out []byte, env ...string) *format.Exit {
	h.t.Helper()
	var client bytes.Buffer
	req := wire.ExecRequest{Cmd: []string{"print", string(out)}, Env: env}
	if _, err := h.Exec(context.Background(), "a", req, stream{strings.NewReader(""), &client}); err != nil {
		h.t.Fatal(err)
	}
	for {
		f, p, err := wire.ReadFrame(&client, nil)
		if err == io.EOF {
			return last[*format.Exit](h, h.id("a"))
		}
		if err != nil || f == wire.FrameRecorded {
			h.t.Fatalf("the client received frame %d, %q, %v", f, p, err)
		}
	}
}

// TestOutput_IsRecordedRedacted runs a command through the engine, as a client does. Its output becomes a capture
// that its exit record names, and no file of the audit log contains the secret, wherever it is in the output.
func TestOutput_IsRecordedRedacted(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	exit := h.printing([]byte("hello\n"))
	if len(exit.Output) != 1 || exit.Output[0].Stream != "stdout" || exit.Output[0].Bytes != 6 {
		t.Fatalf("%+v", exit.Output)
	}
	if b, err := h.Ledger.ReadBlob(format.Sandbox(h.id("a")), exit.Output[0].Blob); err != nil || string(b) != "hello\n" {
		t.Fatalf("%q, %v", b, err)
	}
	if exit := h.printing(nil); len(exit.Output) != 0 {
		t.Errorf("a command without output has %+v", exit.Output)
	}
	for at := range 60 {
		out := bytes.Repeat([]byte("-"), 60+len(secretValue))
		copy(out[at:], secretValue)
		h.printing(out, "MY_TOKEN="+secretValue)
	}
	err := filepath.WalkDir(filepath.Join(h.dir, "ledger"), func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		if leaks(b, secretValue) {
			t.Errorf("a part of the secret is in %s", p)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	seq := int64(0)
	for r, err := range h.Ledger.Read(t.Context(), format.Sandbox(h.id("a")),
		ledger.Filter{Kinds: []format.Kind{format.KindExit}, Limit: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		seq = r.Seq
	}
	res, err := h.InspectRecord(ctx, "a", seq)
	if err != nil || len(res.Output) != 1 || string(res.Output[0].Data) != "hello\n" || len(res.With) != 1 {
		t.Errorf("%+v, %v", res, err)
	}
	if b, err := h.LedgerBlob(ctx, "a", res.Output[0].Blob); err != nil || string(b) != "hello\n" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestExitRecord_NamesChangedPaths(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	h.run("a", "write", "new", "1")
	exit := last[*format.Exit](h, h.id("a"))
	if len(exit.Changes) != 1 || exit.Changes[0] != (format.Change{Change: "added", Path: "/new"}) {
		t.Errorf("%+v", exit.Changes)
	}
	h.run("a", "write", "new", "22")
	if exit = last[*format.Exit](h, h.id("a")); len(exit.Changes) != 1 || exit.Changes[0].Change != "changed" {
		t.Errorf("%+v", exit.Changes)
	}
	h.run("a", "rm", "new")
	if exit = last[*format.Exit](h, h.id("a")); len(exit.Changes) != 1 || exit.Changes[0].Change != "removed" ||
		exit.Before == "" {
		t.Errorf("%+v", exit.Changes)
	}
	if h.run("a", "true"); len(last[*format.Exit](h, h.id("a")).Changes) != 0 {
		t.Error("the exit of true has changes")
	}
}

//go:build linux

package engine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/redact"
)

// secretValue has no part that could be one of a digest by chance.
const secretValue = "correct-horse-battery-staple-Zq8+Vx~T"

// record gives what a keeper records of output that keeps so much of it, and so much more
// before the end.
func record(out []byte, keep, before int) wire.Recorded {
	r := wire.Recorded{Stream: wire.FrameStdout, Total: int64(len(out))}
	r.Head = out[:min(keep/2, len(out))]
	r.Tail = out[max(len(r.Head), len(out)-(keep-keep/2)-before):]
	return r
}

// leaks reports whether a part of the secret is in text that is longer than what chance
// puts there.
func leaks(text []byte, secret string) bool {
	const part = 5
	for i := range len(secret) - part + 1 {
		if bytes.Contains(text, []byte(secret[i:i+part])) {
			return true
		}
	}
	return false
}

// Wherever a secret stands, also across the border of what is kept, and whatever came
// before it, no part of it is kept; and all else that is kept is as it was written.
func TestNoPartOfASecretIsKept(t *testing.T) {
	t.Parallel()
	r, _, err := redact.New(redact.Options{Key: make([]byte, 16), Secrets: []redact.Secret{{Name: "S", Value: secretValue}}})
	if err != nil {
		t.Fatal(err)
	}
	c := cleaner{r}
	before := 2*r.Reach() + 8
	for _, size := range []int{100, 300, 500, 400 + before, 900 + before} {
		const keep = 300
		for at := 0; at+len(secretValue) <= size; at++ {
			out := bytes.Repeat([]byte("."), size)
			copy(out[at:], secretValue)
			rec := record(out, keep, before)
			text, dropped := c.output(rec, keep)
			if leaks(text, secretValue) {
				t.Fatalf("at %d of %d: %q", at, size, text)
			}
			if (dropped > 0) != (size > keep) || dropped > 0 && !strings.Contains(string(text), fmt.Sprintf(gap, dropped)) {
				t.Fatalf("at %d of %d: %d dropped, %q", at, size, dropped, text)
			}
		}
	}
}

func TestWhatIsKeptOfOutput(t *testing.T) {
	t.Parallel()
	r, _, err := redact.New(redact.Options{Key: make([]byte, 16)})
	if err != nil {
		t.Fatal(err)
	}
	c := cleaner{r}
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(0, 4000).Draw(t, "size")
		keep := rapid.SampledFrom([]int{0, 2, 100, 1000, 5000}).Draw(t, "keep")
		out := make([]byte, size)
		for i := range out {
			out[i] = "0123456789\n"[i%11]
		}
		text, dropped := c.output(record(out, keep, 2*r.Reach()), int64(keep))
		switch {
		case keep == 0 || size == 0:
			if len(text) != 0 || dropped != int64(size) {
				t.Fatalf("%q, %d dropped", text, dropped)
			}
		case size <= keep:
			if !bytes.Equal(text, out) || dropped != 0 {
				t.Fatalf("%q, %d dropped", text, dropped)
			}
		default:
			if dropped != int64(size-keep) || !bytes.HasPrefix(text, out[:keep/2-1]) || !bytes.HasSuffix(text, out[size-(keep-keep/2):]) {
				t.Fatalf("%q, %d dropped of %d with %d kept", text, dropped, size, keep)
			}
		}
	})
	if text, dropped := (cleaner{}).output(wire.Recorded{Total: 3, Head: []byte("abc")}, 100); len(text) != 0 || dropped != 3 {
		t.Errorf("%q is kept by no redactor", text)
	}
}

// output is what a fake command writes.
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
			h.t.Fatalf("the client is sent frame %d, %q, %v", f, p, err)
		}
	}
}

// Through the engine, as a client has it: what a command prints is a capture that its exit
// names, and no file of the ledger has its secret, wherever that stands.
func TestOutputIsKeptWithoutSecrets(t *testing.T) {
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
		t.Errorf("of no output %+v", exit.Output)
	}
	for at := range 60 {
		out := bytes.Repeat([]byte("-"), 100)
		copy(out[at:], secretValue)
		h.printing(out, "MY_TOKEN="+secretValue)
	}
	err := filepath.WalkDir(filepath.Join(h.dir, "ledger"), func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		if leaks(b, secretValue) {
			t.Errorf("the secret is in %s", p)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	seq := int64(0)
	for r, err := range h.Ledger.Read(t.Context(), format.Sandbox(h.id("a")), ledger.Filter{Kinds: []format.Kind{format.KindExit}, Limit: 1}) {
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

func TestChangedPathsAreNamed(t *testing.T) {
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
	if exit = last[*format.Exit](h, h.id("a")); len(exit.Changes) != 1 || exit.Changes[0].Change != "removed" || exit.Before == "" {
		t.Errorf("%+v", exit.Changes)
	}
	if h.run("a", "true"); len(last[*format.Exit](h, h.id("a")).Changes) != 0 {
		t.Error("true changed something")
	}
}

package audit

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/redact"
)

// secretValue has no five consecutive characters that a digest, a signature or an id may contain by chance: each such
// part has a character that base64 does not use.
const secretValue = "cor~rect!hor~se-b!att~ery!sta~ple~Zq8!Vx~T"

// record returns what a keeper records of output: half of keep from its beginning and half from its end, and before
// more bytes before the end.
func record(out []byte, keep, before int) wire.Recorded {
	r := wire.Recorded{Stream: wire.FrameStdout, Total: int64(len(out))}
	r.Head = out[:min(keep/2, len(out))]
	r.Tail = out[max(len(r.Head), len(out)-(keep-keep/2)-before):]
	return r
}

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

// TestCleaner_KeepsNoPartOfSecret checks that no part of a secret is kept, wherever the secret is, also across the
// end of the kept part and after any prefix, and that all other kept text is unchanged.
func TestCleaner_KeepsNoPartOfSecret(t *testing.T) {
	t.Parallel()
	secrets := []redact.Secret{{Name: "S", Value: secretValue}}
	r, _, err := redact.New(redact.Options{Key: make([]byte, 16), Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}
	c := Cleaner{r}
	before := 2*r.Reach() + 8
	for _, size := range []int{100, 300, 500, 400 + before, 900 + before} {
		const keep = 300
		for at := 0; at+len(secretValue) <= size; at++ {
			out := bytes.Repeat([]byte("."), size)
			copy(out[at:], secretValue)
			rec := record(out, keep, before)
			text, dropped := c.redactOutput(rec, keep)
			if leaks(text, secretValue) {
				t.Fatalf("at %d of %d: %q", at, size, text)
			}
			if (dropped > 0) != (size > keep) || dropped > 0 && !strings.Contains(string(text), fmt.Sprintf(gap, dropped)) {
				t.Fatalf("at %d of %d: %d dropped, %q", at, size, dropped, text)
			}
		}
	}
}

func TestCleaner_KeepsHeadAndTailOfOutput(t *testing.T) {
	t.Parallel()
	r, _, err := redact.New(redact.Options{Key: make([]byte, 16)})
	if err != nil {
		t.Fatal(err)
	}
	c := Cleaner{r}
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(0, 4000).Draw(t, "size")
		keep := rapid.SampledFrom([]int{0, 2, 100, 1000, 5000}).Draw(t, "keep")
		out := make([]byte, size)
		for i := range out {
			out[i] = "0123456789\n"[i%11]
		}
		text, dropped := c.redactOutput(record(out, keep, 2*r.Reach()), int64(keep))
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
			if dropped != int64(size-keep) || !bytes.HasPrefix(text, out[:keep/2-1]) ||
				!bytes.HasSuffix(text, out[size-(keep-keep/2):]) {
				t.Fatalf("%q, %d dropped of %d with %d kept", text, dropped, size, keep)
			}
		}
	})
	text, dropped := (Cleaner{}).redactOutput(wire.Recorded{Total: 3, Head: []byte("abc")}, 100)
	if len(text) != 0 || dropped != 3 {
		t.Errorf("a Cleaner without a redactor keeps %q", text)
	}
}

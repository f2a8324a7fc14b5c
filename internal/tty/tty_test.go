package tty

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

func TestClean_EscapesControlCharacters(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"rm -rf /usr":           "rm -rf /usr",
		"\x1b[31mred\x1b[0m":    `\033[31mred\033[0m`,
		"a\nb\tc\r":             `a\nb\tc\r`,
		"\xff\xfe":              `\377\376`,
		"café ☕":                "café ☕",
		"\u202egnp.exe":         `\u202egnp.exe`,
		"\u009b31m":             `\u009b31m`,
		"x\x00\x7f":             `x\000\177`,
		"\U000e0001tag":         `\U000e0001tag`,
		"real \ufffd character": `real \ufffd character`,
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestQuote_MatchesGit(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"usr/bin/git": "usr/bin/git",
		"a b":         "a b",
		" a":          `" a"`,
		"a\nb":        `"a\nb"`,
		`a"b\c`:       `"a\"b\\c"`,
		"\xe4":        `"\344"`,
		"":            `""`,
	} {
		if got := Quote(in); got != want {
			t.Errorf("Quote(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestCleaner_JoinsSplitCharacters(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := Cleaner(&b)
	for _, c := range []byte("é\x1b]0;x\a\n\tok ☕") {
		if _, err := w.Write([]byte{c}); err != nil {
			t.Fatal(err)
		}
	}
	if want := "é\\033]0;x\\007\n\tok ☕"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestTable_AlignsAndTrims(t *testing.T) {
	t.Parallel()
	var tab Table
	tab.Row("NAME", "STATE", "")
	tab.Row("é", "idle", "x")
	var b strings.Builder
	if err := tab.Write(&b); err != nil {
		t.Fatal(err)
	}
	if want := "NAME  STATE\né     idle   x\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestBytesAgoCut(t *testing.T) {
	t.Parallel()
	for in, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1<<20 - 1: "1.0 MiB",
		5 << 30: "5.0 GiB"} {
		if got := Bytes(in); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", in, got, want)
		}
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for d, want := range map[time.Duration]string{0: "just now", time.Minute: "1 min ago", 47 * time.Hour: "47 h ago",
		72 * time.Hour: "3 days ago"} {
		if got := Ago(now.Add(-d), now); got != want {
			t.Errorf("Ago(%s) = %q, want %q", d, got, want)
		}
	}
	if got := Cut("abcdef", 5); got != "ab..." {
		t.Errorf("Cut = %q", got)
	}
}

func TestBar_ShowsOnTerminalAndClears(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Unix(0, 0)
	b := &Bar{w: &out, cols: 80, now: func() time.Time { return now }, next: now.Add(showAfter)}
	b.Set("import", 1, 4, false)
	if out.Len() != 0 {
		t.Errorf("shown at once: %q", out.String())
	}
	now = now.Add(time.Second)
	b.Set("import", 1, 4, false)
	if !strings.Contains(out.String(), "[######------------------]  25 %") {
		t.Errorf("got %q", out.String())
	}
	b.Clear()
	if !strings.HasSuffix(out.String(), "\r\x1b[K") {
		t.Errorf("not cleared: %q", out.String())
	}
	none := NewBar(nil)
	none.Set("x", 1, 2, true)
	none.Clear()
}

// TestBar_WritesLinesToAPipe checks that on a pipe a long operation writes a line every ten seconds, and a quick one
// nothing.
func TestBar_WritesLinesToAPipe(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	bar := NewBar(w)
	now := time.Now()
	bar.now = func() time.Time { return now }
	for range 25 {
		bar.Set("import", 1<<20, 4<<20, true)
		now = now.Add(time.Second)
	}
	bar.Clear()
	w.Close()
	got, err := io.ReadAll(r)
	if want := strings.Repeat("import  1.0 MiB of 4.0 MiB\n", 2); err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

package mcpapi

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestExcerpt_KeepsHeadAndTail writes texts in pieces of any size. A short one must be whole, a long one must
// have its beginning and its end, and the numbers must add up.
func TestExcerpt_KeepsHeadAndTail(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, total := range []int{0, 1, maxText / 2, maxText/2 + 1, maxText, maxText + 1, 3 * maxText, 1 << 20} {
		var all []byte
		for i := 0; len(all) < total; i++ {
			all = append(all, byte('a'+i%26))
		}
		var e excerpt
		for rest := all; len(rest) > 0; {
			n := min(len(rest), 1+rnd.IntN(1+rnd.IntN(2*maxText)))
			if _, err := e.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		head, tail, omitted := e.text()
		if got := int64(len(head)+len(tail)) + omitted; got != int64(total) {
			t.Errorf("%d bytes: %d and %d are kept, %d left out", total, len(head), len(tail), omitted)
		}
		if total <= maxText && omitted != 0 || len(head)+len(tail) > maxText || !bytes.HasPrefix(all, []byte(head)) ||
			!bytes.HasSuffix(all, []byte(tail)) {
			t.Errorf("%d bytes: wrong text of %d and %d", total, len(head), len(tail))
		}
	}
}

func FuzzExcerpt(f *testing.F) {
	f.Add([]byte("plain\n"), 3, 1)
	f.Add([]byte("\x1b[2J\xff\xfe\u202e\r\n"), 2, 40_000)
	f.Fuzz(func(t *testing.T, p []byte, piece, times int) {
		piece, times = max(1, piece%1000), max(1, times%100_000)
		times = min(times, (8*maxText)/(len(p)+1)+1)
		var e excerpt
		for range times {
			for rest := p; len(rest) > 0; rest = rest[min(len(rest), piece):] {
				_, _ = e.Write(rest[:min(len(rest), piece)])
			}
		}
		all, _, omitted := section("x", &e)
		if len(all) > maxText+100 || omitted < 0 || omitted > e.total {
			t.Errorf("%d bytes make %d, and %d left out", e.total, len(all), omitted)
		}
		harmlessText(t, all)
	})
}

func harmlessText(t *testing.T, s string) {
	t.Helper()
	if !utf8.ValidString(s) {
		t.Errorf("not UTF-8: %q", s)
	}
	if i := strings.IndexFunc(s,
		func(r rune) bool { return r < 0x20 && r != '\n' && r != '\t' || r == 0x7f || r == 0x202e }); i >= 0 {
		t.Errorf("a control byte at %d: %q", i, s[i:min(len(s), i+20)])
	}
}

// TestAtMost_StopsAtLimit checks that any piece of a patch that exceeds the limit ends it, and that nothing more
// is read.
func TestAtMost_StopsAtLimit(t *testing.T) {
	t.Parallel()
	w := &atMost{limit: 10}
	if n, err := w.Write([]byte("12345")); n != 5 || err != nil {
		t.Error(n, err)
	}
	if n, err := w.Write([]byte("67890x")); n != 5 || err != errEnough {
		t.Error(n, err)
	}
	if w.String() != "1234567890" {
		t.Error(w.String())
	}
}

func TestPlace_ParsesResourceURI(t *testing.T) {
	t.Parallel()
	s := &server{}
	for uri, want := range map[string]string{
		"coppice://box/log":              "box log",
		"coppice://box/diff/HEAD~1/HEAD": "box diff HEAD~1 HEAD",
		"coppice://b/diff/a%2Fb/%407":    "b diff a/b @7",
		"coppice://box":                  "",
		"coppice:///log":                 "",
		"coppice://box/diff//b":          "",
		"coppice://box/%zz":              "",
		"file:///etc/passwd":             "",
	} {
		sandbox, what, args, err := s.place(uri)
		got := strings.Join(append([]string{sandbox, what}, args...), " ")
		if (err != nil) != (want == "") || err == nil && got != want {
			t.Errorf("%s: %q, %v", uri, got, err)
		}
	}
	bound := &server{opt: Options{Sandbox: "box"}}
	if _, _, _, err := bound.place("coppice://other/log"); err == nil {
		t.Error("another sandbox's log can be read")
	}
}

func FuzzPlace(f *testing.F) {
	f.Add("coppice://box/diff/a/b")
	f.Fuzz(func(t *testing.T, uri string) {
		sandbox, what, _, err := (&server{}).place(uri)
		if err == nil && (sandbox == "" || what == "") {
			t.Errorf("%q belongs to %q, %q", uri, sandbox, what)
		}
	})
}

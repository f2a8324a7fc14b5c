package redact

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestNew_ReportsUnfitSecrets(t *testing.T) {
	t.Parallel()
	r, unfit, err := New(Options{Key: key, Secrets: []Secret{
		{"empty", ""}, {"blank", " \n\t        "}, {"short", "abcde"}, {"just", " abcdef\n"},
		{"long", strings.Repeat("x", MaxSecret+1)}, {"word", "Redact"}, {"own", "own:own"}, {"rule", "cookie"},
	}})
	want := []Unfit{{"empty", TooShort}, {"blank", TooShort}, {"short", TooShort}, {"long", TooLong}, {"word", InMark},
		{"rule", InMark}}
	if err != nil || !slices.Equal(unfit, want) {
		t.Fatalf("%v, %v, want %v", unfit, err, want)
	}
	for text, want := range map[string]string{
		"abcde abcdef": "abcde |", "to redact": "to |", "\n\n  \t        ": "\n\n  \t        ", "a cookie": "a |",
	} {
		if got := anyMark.ReplaceAllString(r.String(text), "|"); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	var many []Secret
	for i := range MaxSecrets/MaxSecret + 1 {
		many = append(many, Secret{fmt.Sprint("s", i), strings.Repeat(fmt.Sprintf("%08d", i), MaxSecret/8)})
	}
	if _, unfit, err := New(Options{Key: key, Secrets: many}); err != nil ||
		!slices.Equal(unfit, []Unfit{{many[len(many)-1].Name, TooLong}}) {
		t.Errorf("%v, %v", unfit, err)
	}
}

func TestNew_RefusesInvalidOptions(t *testing.T) {
	t.Parallel()
	pattern := func(name, expr string) Options { return Options{Key: key, Patterns: []Pattern{{name, expr}}} }
	for name, o := range map[string]Options{
		"no key":           {},
		"a short key":      {Key: key[:8]},
		"a secret's name":  {Key: key, Secrets: []Secret{{"a b", "abcdef"}}},
		"a pattern's name": pattern("a]b", "x"),
		"syntax":           pattern("p", "a("),
		"nothing":          pattern("p", "a*"),
		"a long one":       pattern("p", strings.Repeat("a", maxExpr+1)),
		"a large one":      pattern("p", "(a{1,100}b{1,100}c{1,100}d{1,100}e{1,100}){1,10}"),
		"many":             {Key: key, Patterns: make([]Pattern, MaxPatterns+1)},
	} {
		if _, _, err := New(o); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFingerprints checks that the marks of a secret are the same in all its forms, in one home, and different in
// another home.
func TestFingerprints(t *testing.T) {
	t.Parallel()
	const value = "hunter2/hunter2"
	o := Options{Key: key, Secrets: []Secret{{"db", value}, {"other", "correct horse"}}}
	r := redactor(t, o)
	want := r.String(value)
	for name, write := range writings {
		if got := r.String(write(value)); !strings.Contains(got, want) {
			t.Errorf("%s: %q does not contain %q", name, got, want)
		}
	}
	if got := r.String("correct horse"); strings.HasSuffix(got, want[len(want)-markTail:]) {
		t.Errorf("%q and %q have the same fingerprint", got, want)
	}
	o.Key = []byte("the key of another home")
	other, _, err := New(o)
	if err != nil || other.String(value) == want {
		t.Errorf("%q in two homes, %v", want, err)
	}
	// A secret that a rule finds has the fingerprint that it would have as a known secret.
	if got := redactor(t, Options{}).String("password=" + value); !strings.HasSuffix(got, want[len(want)-markTail:]) {
		t.Errorf("%q and %q", got, want)
	}
	if a, b := r.String("password=unknown-1"),
		r.String("PASSWORD: unknown-1"); a[len("password="):] != b[len("PASSWORD: "):] {
		t.Errorf("%q and %q", a, b)
	}
}

// TestSecretsOfSeveralLines checks that a secret of several lines is found as terminals write it, and line by line.
func TestSecretsOfSeveralLines(t *testing.T) {
	t.Parallel()
	const a, b = "MIIEvQIBADANBgkqhkiG9w0BAQEF", "AASCBKcwggSjAgEAAoIBAQDXyzzyx"
	r := redactor(t, Options{Secrets: []Secret{{"pem", "-----BEGIN X-----\n" + a + "\n" + b + "\n-----END X-----\n"}}})
	for _, text := range []string{a + "\n" + b, a + "\r\n" + b, a + `\n` + b, "1: " + a + "\n2: " + b, b} {
		if got := r.String(text); leaks(got, a) || leaks(got, b) {
			t.Errorf("%q is %q", text, got)
		}
	}
	if got := r.String("-----BEGIN X-----"); got != "-----BEGIN X-----" {
		t.Errorf("a fence alone is %q", got)
	}
}

// TestKnownSecret_IsNamed checks that a secret that the host knows is named even if another match covers it.
func TestKnownSecret_IsNamed(t *testing.T) {
	t.Parallel()
	r := redactor(t, Options{Secrets: []Secret{{"db", "hunter2hunter2"}}})
	for _, text := range []string{"password=hunter2hunter2", "Cookie: a=b; c=hunter2hunter2; d=e",
		"postgres://u:hunter2hunter2@h/"} {
		if got := r.String(text); !strings.Contains(got, "[redacted:db:") {
			t.Errorf("%q is %q", text, got)
		}
	}
}

func TestPatterns_MatchWithinLines(t *testing.T) {
	t.Parallel()
	r := redactor(t, Options{Patterns: []Pattern{
		{"start", `^id [0-9]+$`}, {"group", `pin=([0-9]{4})`}, {"wide", `<[^>]*>`}, {"either", `(?i)alpha-\d|BETA-\d`},
	}})
	long := strings.Repeat("-", 3*window)
	for text, want := range map[string]string{
		"id 1\nid 2\nx id 3\nid 4": "|\n|\nx id 3\n|",
		"pin=1234, pin=12":         "pin=|, pin=12",
		"<a> <b\n>":                "| <b\n>",
		"Alpha-1 beta-2 BETA-3":    "| | |",
		long + "<secret>" + long:   long + "|" + long,
	} {
		if got := anyMark.ReplaceAllString(r.String(text), "|"); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	// A match of MaxMatch bytes is found at any position of a long line.
	match := "<" + strings.Repeat("s", MaxMatch-2) + ">"
	for at := range 2 * window / 61 {
		if got := r.String(long[:61*at] + match + long); leaks(got, match) {
			t.Errorf("a match at %d is left", 61*at)
		}
	}
}

func TestEntropy_RedactsRandomTokens(t *testing.T) {
	t.Parallel()
	r := redactor(t, Options{Entropy: true})
	for text, want := range map[string]string{
		"commit 4b825dc642cb6eb9a060e54bf8d69288fbee4904":                   "commit |",
		"x " + strings.Repeat("q7Rt0ZpLm3xKv8", 200) + " y":                 "x | y",
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1":                                   "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1",
		"AVeryLongNameOfSomethingThatSomebodyThoughtOf /usr/lib/python3/x1": "AVeryLongNameOfSomethingThatSomebodyThoughtOf /usr/lib/python3/x1",
	} {
		if got := anyMark.ReplaceAllString(r.String(text), "|"); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
		if got := alone(t).String(text); got != text {
			t.Errorf("%q is %q without the option", text, got)
		}
	}
}

func TestRedactor_ConcurrentUse(t *testing.T) {
	t.Parallel()
	r := redactor(t, Options{Secrets: fifty(), Patterns: policy})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for _, l := range r.rules {
				for _, e := range l.drop {
					if text := strings.NewReplacer("‹", "", "›", "").Replace(e); r.String(text) == text {
						t.Errorf("%q is not redacted", text)
					}
				}
			}
		})
	}
	wg.Wait()
}

// full accepts room bytes, and no more.
type full struct {
	bytes.Buffer
	room int
}

var errFull = errors.New("full")

func (f *full) Write(b []byte) (int, error) {
	n := min(len(b), f.room)
	f.room -= n
	f.Buffer.Write(b[:n])
	if n < len(b) {
		return n, errFull
	}
	return n, nil
}

func TestWriter(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("a line, and password=hunter2!\n", 5000)
	r := alone(t)
	var out bytes.Buffer
	w := r.Writer(&out)
	for range 2 { // a second stream after the first
		for rest := text; rest != ""; {
			n := min(len(rest), 70001)
			if m, err := w.Write([]byte(rest[:n])); m != n || err != nil {
				t.Fatal(m, err)
			}
			rest = rest[n:]
		}
		if err := w.Close(); err != nil || out.String() != r.String(text) {
			t.Errorf("%d bytes, %v", out.Len(), err)
		}
		out.Reset()
	}
	// An error of the underlying writer is reported, and nothing is written after it.
	f := &full{room: 100}
	w = r.Writer(f)
	_, err := w.Write([]byte(text))
	f.room = 1 << 20
	_, again := w.Write([]byte(text))
	if end := w.Close(); err != errFull || again != errFull || end != errFull || f.Len() != 100 {
		t.Errorf("%v, %v, %v, %d bytes", err, again, end, f.Len())
	}
}

package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var key = []byte("a key of a home for tests")

func redactor(t rapid.TB, o Options) *Redactor {
	t.Helper()
	o.Key = key
	r, _, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// cut redacts text in pieces that end at the given positions, which are sorted.
func cut(r *Redactor, text string, places ...int) string {
	s := r.Stream()
	var out []byte
	from := 0
	for _, to := range append(places, len(text)) {
		out = s.Append(out, []byte(text[from:to]))
		from = to
	}
	return string(s.Finish(out))
}

var anyMark = regexp.MustCompile(`\[redacted:[A-Za-z0-9][A-Za-z0-9_.-]{0,63}:[0-9a-f]{12}\]`)

// leaks reports whether out contains value outside its marks, ignoring case.
func leaks(out, value string) bool {
	return strings.Contains(anyMark.ReplaceAllString(fold(out), "\x00\x00"), fold(value))
}

// writings are the ways in which tests write a secret, independent of forms.
var writings = map[string]func(string) string{
	"plain":       func(v string) string { return v },
	"upper case":  upper,
	"hex":         func(v string) string { return hex.EncodeToString([]byte(v)) },
	"HEX":         func(v string) string { return strings.ToUpper(hex.EncodeToString([]byte(v))) },
	"base64":      func(v string) string { return base64.StdEncoding.EncodeToString([]byte(v)) },
	"base64 url":  func(v string) string { return base64.RawURLEncoding.EncodeToString([]byte(v)) },
	"base64 +1":   func(v string) string { return base64.StdEncoding.EncodeToString([]byte("u" + v + "tail")) },
	"base64 +2":   func(v string) string { return base64.URLEncoding.EncodeToString([]byte("u:" + v + "!")) },
	"query":       url.QueryEscape,
	"path":        url.PathEscape,
	"JSON":        func(v string) string { b, _ := json.Marshal(v); return string(b) },
	"JSON twice":  func(v string) string { b, _ := json.Marshal(v); b, _ = json.Marshal(string(b)); return string(b) },
	"in a URL":    func(v string) string { return "https://u:" + url.QueryEscape(v) + "@host/" },
	"in a cookie": func(v string) string { return "Cookie: a=b; s=" + v + "\r\n" },
	"assigned":    func(v string) string { return "PASSWORD=" + v + "\n" },
}

// upper converts ASCII letters to upper case.
func upper(v string) string {
	b := []byte(v)
	for i, c := range b {
		if 'a' <= c && c <= 'z' {
			b[i] = c - 'a' + 'A'
		}
	}
	return string(b)
}

// values returns secrets of all sorts; texts returns text with secrets in it.
func values() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[A-Za-z0-9+/=_-]{6,40}`),
		rapid.StringMatching(`[ab]{6,12}`),
		rapid.StringMatching(`[!-Z^-~]{6,24}`),
		rapid.StringMatching(`[!-Z^-~][ -Z^-~é☃𝄞\n"\\/%+&<>]{4,20}[!-Z^-~]`),
	)
}

func texts(secrets []string, rules []*rule) *rapid.Generator[string] {
	of := slices.Sorted(func(yield func(string) bool) {
		for name := range writings {
			if !yield(name) {
				return
			}
		}
	})
	gens := []*rapid.Generator[string]{
		rapid.StringMatching(`[a-z ,.\n]{0,30}`),
		rapid.StringMatching(`[ab]{0,30}`),
		rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "bytes")) }),
		rapid.Custom(func(t *rapid.T) string {
			l := rapid.SampledFrom(rules).Draw(t, "rule")
			e := strings.NewReplacer("‹", "", "›", "").Replace(rapid.SampledFrom(append(l.drop, l.keep...)).Draw(t, "example"))
			return e[:rapid.IntRange(0, len(e)).Draw(t, "to")]
		}),
		rapid.Custom(func(t *rapid.T) string {
			l := rapid.SampledFrom(rules).Draw(t, "rule")
			return rapid.SampledFrom(l.keys).Draw(t, "key") + rapid.SampledFrom([]string{"", "=", ": ", `="`, " "}).
				Draw(t, "sign")
		}),
		rapid.SampledFrom(
			[]string{mark("x", "0123456789ab"), "[redacted:password:", "ACME-123456", "key 77: ", strings.Repeat("Zq8", 60),
				strings.Repeat("a1b2C3", 700), strings.Repeat("long ", 900)}),
	}
	if len(secrets) > 0 {
		gens = append(gens, rapid.Custom(func(t *rapid.T) string {
			v := rapid.SampledFrom(secrets).Draw(t, "secret")
			v = writings[rapid.SampledFrom(of).Draw(t, "written")](v)
			from := rapid.IntRange(0, len(v)).Draw(t, "from") * rapid.IntRange(0, 1).Draw(t, "part")
			return v[from:]
		}))
	}
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.OneOf(gens...), 0, 12).Draw(t, "text"), "")
	})
}

var policy = []Pattern{{"acme", `\bACME-[0-9]+`}, {"numbered", `^key [0-9]+: (\S*)`}, {"many", `[ab]{7,}`}}

// TestStream_RedactsAcrossChunks checks that the output is the same however the input is
// split, and contains no secret that the host knows.
func TestStream_RedactsAcrossChunks(t *testing.T) {
	t.Parallel()
	rules := alone(t).rules
	rapid.Check(t, func(t *rapid.T) {
		secrets := rapid.SliceOfN(values(), 0, 5).Draw(t, "secrets")
		o := Options{Entropy: rapid.Bool().Draw(t, "entropy")}
		if rapid.Bool().Draw(t, "patterns") {
			o.Patterns = policy
		}
		for i, v := range secrets {
			o.Secrets = append(o.Secrets, Secret{fmt.Sprintf("s%d", i), v})
		}
		r := redactor(t, o)
		text := texts(secrets, rules).Draw(t, "text")
		whole := r.String(text)
		for _, v := range secrets {
			if v = strings.TrimSpace(v); len(v) < MinSecret {
				continue
			}
			for name, write := range writings {
				if strings.HasPrefix(name, "base64") {
					continue // TestStream_RedactsBase64AtAnyOffset checks its certain part
				}
				written := write(v)
				if strings.HasPrefix(name, "JSON") {
					written = written[1 : len(written)-1] // without its quotes
				}
				if leaks(whole, written) {
					t.Errorf("%q, %s, is in %q", v, name, whole)
				}
			}
		}
		for _, places := range [][]int{
			rapid.SliceOfN(rapid.IntRange(0, len(text)), 0, 8).Draw(t, "places"),
			every(rapid.IntRange(1, 40).Draw(t, "size"), len(text)),
		} {
			slices.Sort(places)
			if got := cut(r, text, places...); got != whole {
				t.Fatalf("%q\ncut at %v is\n%q\nand as a whole\n%q", text, places, got, whole)
			}
		}
	})
}

// every returns the positions that split n bytes into pieces of one size.
func every(size, n int) (places []int) {
	for at := size; at < n; at += size {
		places = append(places, at)
	}
	return places
}

// TestStream_EveryOffsetAndChunkSize puts each example, in each encoding, at each position and
// in pieces of each size.
func TestStream_EveryOffsetAndChunkSize(t *testing.T) {
	t.Parallel()
	value := `tr0ub4dor&3/"x`
	r := redactor(t, Options{Secrets: []Secret{{"known", value}}, Patterns: policy, Entropy: true})
	all := []string{
		"ab " + strings.Repeat("ab", 20) + " ACME-1 key 7: x\nkey 7: y\n",
		"https://" + strings.Repeat("u", 128) + ":" + strings.Repeat("p", 512) + "@host/",
		strings.Repeat("-", 5) + "BEGIN PRIVATE KEY-----\n" + strings.Repeat("MIIEvQIBAD\n", 50) +
			"-----END PRIVATE KEY-----\nand on",
		"https://" + strings.Repeat("u", 60) + ":" + strings.Repeat("p", 100) + " @host/",
	}
	for _, l := range r.rules {
		for _, e := range l.drop {
			all = append(all, strings.NewReplacer("‹", "", "›", "").Replace(e))
		}
	}
	for _, write := range writings {
		all = append(all, "> "+write(value)+" <"+write(value)+write(value))
	}
	// The following text is longer than any buffer, so that the end of input decides nothing.
	const after = window + 512
	for _, text := range all {
		places := len(text)
		text += strings.Repeat("\n. ; ", after/5)
		whole := r.String(text)
		for at := 0; at < places; at += 1 + places/150 { // not all of long texts
			if got := cut(r, text, at); got != whole {
				t.Fatalf("%q cut at %d is %q, and as a whole %q", text, at, got, whole)
			}
			if got := cut(r, text, every(at+1, len(text))...); got != whole {
				t.Fatalf("%q in pieces of %d is %q, and as a whole %q", text, at+1, got, whole)
			}
		}
	}
}

// TestStream_RemovesExactlyOccurrences checks that with values only, the output is the input without the bytes of
// their occurrences.
func TestStream_RemovesExactlyOccurrences(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab ]{6,9}`)
		var o Options
		for i, v := range rapid.SliceOfN(word, 1, 4).Draw(t, "values") {
			o.Secrets = append(o.Secrets, Secret{fmt.Sprintf("s%d", i), v})
		}
		r := redactor(t, o)
		text := rapid.StringMatching(`[abAB ]{0,200}`).Draw(t, "text")
		gone := make([]bool, len(text))
		for _, s := range o.Secrets {
			v := fold(strings.TrimSpace(s.Value))
			for at := 0; len(v) >= MinSecret && at+len(v) <= len(text); at++ {
				if fold(text[at:at+len(v)]) == v {
					for i := range v {
						gone[at+i] = true
					}
				}
			}
		}
		var want strings.Builder
		for i := range text {
			switch {
			case !gone[i]:
				want.WriteByte(text[i])
			case i == 0 || !gone[i-1]:
				want.WriteByte('|')
			}
		}
		got := regexp.MustCompile(`(`+anyMark.String()+`)+`).ReplaceAllString(r.String(text), "|")
		if got != want.String() {
			t.Errorf("%q is %q, want %q", text, got, want.String())
		}
	})
}

// TestStream_RedactsBase64AtAnyOffset checks that the part of an encoded secret that does not
// depend on the text around it is redacted.
func TestStream_RedactsBase64AtAnyOffset(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.StringMatching(`[!-Z^-~]{6,30}`).Draw(t, "value")
		before := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "before")
		after := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "after")
		enc := rapid.SampledFrom(
			[]*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding}).
			Draw(t, "encoding")
		text := enc.EncodeToString(slices.Concat(before, []byte(value), after))
		from, to := 8*len(before)/6, (8*(len(before)+len(value))+5)/6 // all characters that have a bit of it
		r := redactor(t, Options{Secrets: []Secret{{"s", value}}})
		got := r.String("<" + text + ">")
		if pieces := cut(r, "<"+text+">", every(rapid.IntRange(1, 9).Draw(t, "size"), len(text))...); pieces != got {
			t.Errorf("%q in pieces is %q, and as a whole %q", text, pieces, got)
		}
		parts := anyMark.Split(got, -1)
		if len(parts) < 2 || len(parts[0]) > 1+from || len(parts[len(parts)-1]) > len(text)-to+1 {
			t.Errorf("%q, in which %q is from %d to %d, is %q", text, value, from, to, got)
		}
	})
}

// TestStream_HoldsBackOnlyPossibleSecrets checks that bytes that cannot begin a secret are
// passed on at once, and that the number of bytes held back is bounded.
func TestStream_HoldsBackOnlyPossibleSecrets(t *testing.T) {
	t.Parallel()
	const value = "correct horse battery"
	r := redactor(t, Options{Secrets: []Secret{{"s", value}}})
	s := r.Stream()
	if got := string(s.Append(nil, []byte("all is well.\n# 1 2 3 !\n"))); got != "all is well.\n# 1 2 3 !\n" {
		t.Errorf("only %q of plain text is passed on", got)
	}
	if got := string(s.Append(nil, []byte(value))); got != "" {
		t.Errorf("%q of a secret is passed on", got)
	}
	if got := string(s.Append(nil, []byte("; ;;"))); !strings.HasSuffix(got, "]; ;;") {
		t.Errorf("after a secret, %q is passed on", got)
	}
	longest := 0
	for _, l := range r.rules {
		longest = max(longest, l.near)
	}
	r = redactor(t, Options{Secrets: []Secret{{"s", value}}, Patterns: policy, Entropy: true})
	rapid.Check(t, func(t *rapid.T) {
		s := r.Stream()
		text := texts([]string{value}, r.rules).Draw(t, "text")
		for i := range len(text) {
			s.Append(nil, []byte{text[i]})
			if len(s.buf) > max(window, longest, 6*len(value)) {
				t.Fatalf("%d bytes are held back of %q", len(s.buf), text[:i+1])
			}
		}
	})
}

// TestStream_EndlessSecretUsesNoMemory checks that a secret without an end is discarded as it arrives.
func TestStream_EndlessSecretUsesNoMemory(t *testing.T) {
	t.Parallel()
	for begin, more := range map[string]string{
		"-----BEGIN RSA PRIVATE KEY-----\n": strings.Repeat("MIIE", 16) + "\n",
		"token=abcdefgh":                    strings.Repeat("token=", 10),
		"Cookie: a=b":                       strings.Repeat("; Cookie: c=d", 5),
		"aaaaaaaa":                          strings.Repeat("a", 64),
	} {
		s := redactor(t, Options{Secrets: []Secret{{"s", "aaaaaaaa"}}}).Stream()
		out := s.Append(nil, []byte(begin))
		for range 1 << 14 {
			out = s.Append(out, []byte(more))
			if cap(s.buf) > 4*piece || len(s.cover.spans)+len(s.cover.open)+len(s.keys) > 1000 {
				t.Fatalf("after %q: %d bytes, %d spans, %d keys are held", begin, cap(s.buf),
					len(s.cover.spans)+len(s.cover.open), len(s.keys))
			}
		}
		out = s.Finish(out)
		if more := anyMark.ReplaceAll(out, nil); bytes.ContainsAny(more, "MIacd") && begin[0] != 't' && begin[0] != 'C' {
			t.Errorf("after %q %.100q is left", begin, more)
		}
	}
}

func FuzzCut(f *testing.F) {
	const value = `s3cr3t/"v\lue`
	r := redactor(f, Options{Secrets: []Secret{{"known", value}, {"short", "ababab"}}, Patterns: policy, Entropy: true})
	for _, l := range r.rules {
		for _, e := range l.drop {
			f.Add([]byte(strings.NewReplacer("‹", "", "›", "").Replace(e)), uint8(7), uint16(3))
		}
	}
	for _, write := range writings {
		f.Add([]byte(write(value)), uint8(1), uint16(2))
	}
	f.Fuzz(func(t *testing.T, text []byte, size uint8, at uint16) {
		if len(text) > 1<<14 {
			return
		}
		whole := string(r.Bytes(text))
		if leaks(whole, value) || leaks(whole, "ababab") || leaks(whole, hex.EncodeToString([]byte(value))) {
			t.Errorf("%q is %q", text, whole)
		}
		for _, places := range [][]int{every(int(size)+1, len(text)), {min(int(at), len(text))}} {
			if got := cut(r, string(text), places...); got != whole {
				t.Errorf("%q cut at %v is\n%q\nand as a whole\n%q", text, places, got, whole)
			}
		}
	})
}

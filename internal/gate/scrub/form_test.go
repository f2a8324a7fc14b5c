package scrub

import (
	"bytes"
	"encoding/base64"
	"errors"
	"html"
	"io"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
)

// keyLike has the characters of base64, as keys of clouds do, in long runs and a short one.
const (
	keyLike   = "wJalrXUtnFEMIq/K7MDENG8x/bPxRfiCYzzKEYq2+Vt0LmDs5hQ=="
	keyLikeIn = "Placeholder0Aa/Bb1Cc2Dd3D/Ee4Ff5Gg6Hh7Ii8J+Kk9Ll0Mm=="
)

// entities writes the characters of base64 that are not letters or digits as templates for HTML and JSON do.
func entities(plus, slash, equals string) func(string) string {
	return strings.NewReplacer("+", plus, "/", slash, "=", equals).Replace
}

// TestReader_FindsMixedEscapes checks that a value in which a service escapes some characters, by its own choice of
// characters and of escapes, does not get through: at most a run shorter than leastForm does.
func TestReader_FindsMixedEscapes(t *testing.T) {
	t.Parallel()
	basic := base64.StdEncoding.EncodeToString([]byte("user:" + keyLike))
	for name, text := range map[string]string{
		"html of Go":         html.EscapeString(keyLike),
		"html of mustache":   entities("+", "&#x2F;", "&#x3D;")(keyLike),
		"json of PHP":        entities("+", `\/`, "=")(keyLike),
		"json of Gson":       entities("+", "/", `\u003d`)(keyLike),
		"json of Rails":      entities(`\u002b`, `\u002F`, `\u003D`)(keyLike),
		"encodeURI":          entities("+", "/", "%3D")(keyLike),
		"quote of Python":    entities("%2B", "/", "%3D")(keyLike),
		"escaped twice":      url.QueryEscape(url.QueryEscape(keyLike)),
		"basic, escaped":     url.QueryEscape(basic),
		"basic, json of PHP": strings.ReplaceAll(basic, "/", `\/`),
		"upper case":         strings.ToUpper(keyLike),
		"lower case":         strings.ToLower(keyLike),
		"all of JSON":        unicodeEscapes(keyLike, "%04x"),
		"all of JSON, upper": unicodeEscapes(keyLike, "%04X"),
	} {
		for split, r := range map[string]io.Reader{"whole": strings.NewReader("<" + text + ">"),
			"bytes": iotest.OneByteReader(strings.NewReader("<" + text + ">")),
			"two": io.MultiReader(strings.NewReader("<"+text[:len(text)/2]),
				strings.NewReader(text[len(text)/2:]+">"))} {
			l := known(Secret{"key", []byte(keyLike), keyLikeIn})
			found := 0
			got, err := io.ReadAll(l.Reader(r, func(string) { found++ }))
			if err != nil || found == 0 || len(got) != len(text)+2 {
				t.Errorf("%s %s: %q, found %d times, %v", name, split, got, found, err)
			}
			all := strings.Join([]string{keyLike, basic, strings.ToUpper(keyLike), strings.ToLower(keyLike)}, " ")
			for _, run := range strings.FieldsFunc(all, func(c rune) bool { return !unreserved(byte(c)) }) {
				if len(run) >= leastForm && strings.Contains(string(got), run[passed:]) {
					t.Errorf("%s %s: %q has %q", name, split, got, run)
				}
			}
			if strings.Contains(string(got), text[passed:]) {
				t.Errorf("%s %s: %q", name, split, got)
			}
		}
	}
}

// TestReader_HoldsBackWhatIsLonger checks that a chunk that ends within a value is not mistaken for a part of it.
func TestReader_HoldsBackWhatIsLonger(t *testing.T) {
	t.Parallel()
	for cut := range keyLike {
		l := known(Secret{"key", []byte(keyLike), keyLikeIn})
		r := io.MultiReader(strings.NewReader("<"+keyLike[:cut]), strings.NewReader(keyLike[cut:]+">"))
		got, err := io.ReadAll(l.Reader(r, func(string) {}))
		sent := cut
		if cut > passed {
			sent = 0
		}
		if want := "<" + keyLike[:sent] + keyLikeIn[sent:] + ">"; err != nil || string(got) != want {
			t.Errorf("cut at %d: %q, %v", cut, got, err)
		}
	}
}

// TestReader_EndsWithinValue checks that an answer that ends within a value, as that of a service that shortens what it
// quotes, does not reveal what it has of it.
func TestReader_EndsWithinValue(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]io.Reader{"end": strings.NewReader("<" + token[:len(token)-1]),
		"broken": io.MultiReader(strings.NewReader("<"+token[:len(token)-1]), iotest.ErrReader(io.ErrUnexpectedEOF))} {
		found := 0
		got, _ := io.ReadAll(known().Reader(r, func(string) { found++ }))
		if string(got) != "<"+inside[:len(token)-1] || found != 1 {
			t.Errorf("%s: %q, found %d times", name, got, found)
		}
	}
	for name, of := range codings() {
		r, err := known().Encoded(name, bytes.NewReader(pack(of, "<"+token[:len(token)-1])))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(r); !errors.As(err, &Found{}) {
			t.Errorf("%s: %v", name, err)
		}
		r.Close()
	}
	text := "<" + token[:leastForm-1]
	got, err := io.ReadAll(known().Reader(strings.NewReader(text), func(string) {}))
	if err != nil || string(got) != text {
		t.Errorf("%q, %v", got, err)
	}
}

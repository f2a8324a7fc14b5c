package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// given is an event of output.
type given struct {
	name   string
	offset int64
	wire.Output
}

func collect(all *[]given) func(string, int64, wire.Output) error {
	return func(name string, offset int64, out wire.Output) error {
		*all = append(*all, given{name, offset, out})
		return nil
	}
}

func TestOutput_JoinsSplitRunes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		frames []string // "1" or "2" and bytes
		want   string   // as JSON, with offsets
	}{
		"text":                {[]string{"1ab", "1c"}, `1@2{"text":"ab"} 1@3{"text":"c"}`},
		"a cut rune":          {[]string{"1a\xe2", "1\x82", "1\xacb"}, `1@1{"text":"a"} 1@5{"text":"€b"}`},
		"a rune that is none": {[]string{"1a\xffb"}, `1@3{"base64":"Yf9i"}`},
		"the end of none":     {[]string{"1a\xff\xe2"}, `1@3{"base64":"Yf/i"}`},
		"a stray end":         {[]string{"1\x82\xac"}, `1@2{"base64":"gqw="}`},
		"never completed":     {[]string{"1a\xe2"}, `1@1{"text":"a"} 1@2{"base64":"4g=="}`},
		"not what it began":   {[]string{"1\xe2", "1a"}, `1@2{"base64":"4mE="}`},
		"another stream": {[]string{"1a\xe2", "2b", "1\x82\xac"},
			`1@1{"text":"a"} 1@2{"base64":"4g=="} 2@3{"text":"b"} 1@5{"base64":"gqw="}`},
		"nothing": {[]string{"1"}, ``},
	} {
		var all []given
		var o output
		for _, f := range tc.frames {
			if err := o.take(f[:1], []byte(f[1:]), collect(&all)); err != nil {
				t.Fatal(err)
			}
		}
		if err := o.flush(collect(&all)); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, g := range all {
			b, _ := json.Marshal(g.Output)
			got = append(got, g.name+"@"+strconv.FormatInt(g.offset, 10)+string(b))
		}
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("%s: %s, want %s", name, s, tc.want)
		}
	}
}

// FuzzOutput cuts bytes of two streams into frames at any place. Every byte must be given once and in order, and
// the offset of each event must be the number of bytes so far.
func FuzzOutput(f *testing.F) {
	f.Add([]byte("a€b\xff"), []byte{1, 2, 0x81, 3})
	f.Add([]byte("\xf0\x9f\x98\x80"), []byte{1, 1, 1, 1})
	f.Fuzz(func(t *testing.T, all, cuts []byte) {
		var want, got [2][]byte
		var o output
		sum := int64(0)
		give := func(name string, offset int64, out wire.Output) error {
			i := 0
			if name == "stderr" {
				i = 1
			}
			if out.Text != "" && out.Base64 != nil || out.Text == "" && utf8.Valid(out.Base64) {
				t.Fatalf("%+v", out)
			}
			p := append([]byte(out.Text), out.Base64...)
			got[i] = append(got[i], p...)
			if sum += int64(len(p)); sum != offset {
				t.Fatalf("offset %d after %d bytes", offset, sum)
			}
			return nil
		}
		for len(all) > 0 && len(cuts) > 0 {
			n := min(int(cuts[0]&0x7f), len(all))
			i, name := 0, "stdout"
			if cuts[0]&0x80 != 0 {
				i, name = 1, "stderr"
			}
			p := bytes.Clone(all[:n])
			want[i] = append(want[i], p...)
			if err := o.take(name, p, give); err != nil {
				t.Fatal(err)
			}
			clear(p) // the buffer belongs to the caller
			all, cuts = all[n:], cuts[1:]
		}
		if err := o.flush(give); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got[0], want[0]) || !bytes.Equal(got[1], want[1]) {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}

func TestOutput_StopsOnSendError(t *testing.T) {
	t.Parallel()
	var o output
	boom := errors.New("boom")
	if err := o.take("stdout", []byte("x"),
		func(string, int64, wire.Output) error { return boom }); !errors.Is(err, boom) {
		t.Error(err)
	}
}

// FuzzEncodeEvent checks that any text becomes one event of three lines.
func FuzzEncodeEvent(f *testing.F) {
	f.Add("a\nb\r\nc\r")
	f.Add("\n\nevent: exit\ndata: {}\n\n")
	f.Fuzz(func(t *testing.T, s string) {
		var b bytes.Buffer
		if err := encodeEvent(&b, "stdout", "7", wire.Output{Text: s}); err != nil {
			t.Fatal(err)
		}
		lines := strings.FieldsFunc(b.String(), func(r rune) bool { return r == '\n' || r == '\r' })
		if len(lines) != 3 || lines[0] != "event: stdout" || lines[1] != "id: 7" || !strings.HasSuffix(b.String(), "\n\n") ||
			strings.Contains(b.String(), "\r") {
			t.Fatalf("%q", b.String())
		}
		var back wire.Output
		if err := json.Unmarshal([]byte(strings.TrimPrefix(lines[2], "data: ")), &back); err != nil ||
			back.Text != strings.ToValidUTF8(s, "\ufffd") && utf8.ValidString(s) {
			t.Fatalf("%q, %v", back.Text, err)
		}
	})
}

// FuzzLastEventID checks that an ID is a number, or is refused with an error that quotes it and a hint.
func FuzzLastEventID(f *testing.F) {
	for _, s := range []string{"", "0", "12", "-1", "+1", "1e3", "18446744073709551615", "9223372036854775807",
		"0x1", "1\n2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := resumeAt(s, 5)
		switch {
		case err != nil && (!fault.Is(err, fault.Invalid) || fault.HintOf(err) == ""):
			t.Fatal(err)
		case err == nil && s == "" && n != 5:
			t.Fatal(n)
		case err == nil && n < 0:
			t.Fatal(n)
		}
		if after, err := (Since{Last: s}).number(); err == nil && s == "" && after != wire.EventsNow {
			t.Fatal(after)
		} else if err != nil && !fault.Is(err, fault.Invalid) {
			t.Fatal(err)
		}
	})
}

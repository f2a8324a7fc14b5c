package scrub

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"
)

// texts returns encodings of a value, each written by a means of the standard library.
func texts(value string) map[string]string {
	quoted, _ := json.Marshal(value)
	all := map[string]string{"raw": value, "json": string(quoted[1 : len(quoted)-1]), "hex": hex.EncodeToString([]byte(value)),
		"bytes": fmt.Sprintf("% x", value), "BYTES": fmt.Sprintf("% X", value), "HEX": strings.ToUpper(hex.EncodeToString([]byte(value))), "query": url.QueryEscape(value),
		"path": url.PathEscape(value), "basic": base64.StdEncoding.EncodeToString([]byte("x-access-token:" + value))}
	for at := range 3 {
		for name, coding := range map[string]*base64.Encoding{"std": base64.StdEncoding, "url": base64.RawURLEncoding} {
			all[fmt.Sprint(name, at)] = coding.EncodeToString([]byte("aaa"[:at] + value + "zz"))
		}
	}
	return all
}

const (
	token  = "ghp_0123456789abcdefghijABCDEFGHIJ4SvFQn"
	inside = "ghp_PLACEHOLDERplaceholder0000000000AAAA"
	odd    = `p4ss/w+rd"<é>\%-and more of it: 0123`
	oddIn  = `Vj29dkLm38sJq01Bx7Yw5cQeRt6UzNaHfGo3`
)

// known returns a Live with both values.
func known(more ...Secret) *Live {
	var l Live
	l.Change(append([]Secret{{"github", []byte(token), inside}, {"odd", []byte(odd), oddIn}}, more...))
	return &l
}

// TestReader_RemovesEncodings reads each encoding in one piece and byte by byte.
func TestReader_RemovesEncodings(t *testing.T) {
	t.Parallel()
	for _, value := range []string{token, odd} {
		for name, text := range texts(value) {
			for split, r := range map[string]io.Reader{"whole": strings.NewReader(text),
				"bytes": iotest.OneByteReader(strings.NewReader(text))} {
				var found []string
				got, err := io.ReadAll(known().Reader(r, func(g string) { found = append(found, g) }))
				if err != nil || len(got) != len(text) || len(found) != 1 {
					t.Errorf("%s %s: %q, found in %q, %v", name, split, got, found, err)
				}
				rest := text[passed:]
				if len(text) > 24 && bytes.Contains(got, []byte(rest[8:len(rest)-8])) {
					t.Errorf("%s %s: %q of %q", name, split, got, text)
				}
			}
		}
	}
}

// TestReader_RemovesFromErrorsOfS3 checks the bytes of a canonical request, in which a session token is escaped.
func TestReader_RemovesFromErrorsOfS3(t *testing.T) {
	t.Parallel()
	const session = "FwoGZXIvYXdzEJr//Xxq+0123456789abcdefgh=="
	text := fmt.Sprintf("<CanonicalRequestBytes>% x</CanonicalRequestBytes>", "X-Amz-Security-Token="+url.QueryEscape(session)+"&")
	got, err := io.ReadAll(known(Secret{"aws", []byte(session), inside}).Reader(strings.NewReader(text), func(string) {}))
	for _, part := range []string{"FwoGZXIvYXdzEJr", "0123456789abcdefgh"} {
		if err != nil || len(got) != len(text) || strings.Contains(string(got), fmt.Sprintf("% x", part)) {
			t.Errorf("%s: %s, %v", part, got, err)
		}
	}
}

// TestReader_ReplacesBySameForm checks that what the sandbox sees is what it would see of its placeholder.
func TestReader_ReplacesBySameForm(t *testing.T) {
	t.Parallel()
	want := texts(inside)
	for name, text := range texts(token) {
		got, err := io.ReadAll(known().Reader(strings.NewReader("<"+text+">"), func(string) {}))
		if strings.HasPrefix(name, "std") || strings.HasPrefix(name, "url") || name == "basic" {
			continue // the characters at the ends have bits of the bytes beside it
		}
		if err != nil || string(got) != "<"+want[name]+">" {
			t.Errorf("%s: %q, want %q", name, got, want[name])
		}
	}
}

// TestReader_AcrossChunks compares random chunks with a replacement of the whole text.
func TestReader_AcrossChunks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		words := []string{token, odd, "g", "ghp_", token[:20], token[20:], odd[:9], strings.Repeat("x", 40)}
		for _, s := range texts(token) {
			words = append(words, s)
		}
		var text strings.Builder
		for range rapid.IntRange(0, 12).Draw(t, "words") {
			text.WriteString(rapid.SampledFrom(words).Draw(t, "word"))
		}
		whole := []byte(text.String())
		l := known()
		l.set.replace(whole, 0, true, func(string) {})
		size := rapid.IntRange(1, 5000).Draw(t, "buffer")
		r := l.Reader(&chunks{text.String(), func() int { return rapid.IntRange(passed+1, 90).Draw(t, "chunk") }},
			func(string) {})
		var got []byte
		for b := make([]byte, size); ; {
			n, err := r.Read(b)
			got = append(got, b[:n]...)
			if err != nil {
				break
			}
		}
		if len(got) != len(whole) || bytes.Contains(got, []byte(token[passed:])) || bytes.Contains(got, []byte(odd[passed:])) {
			t.Fatalf("%q of %q", got, text.String())
		}
	})
}

// chunks is a reader that returns as many bytes as size says.
type chunks struct {
	text string
	size func() int
}

func (c *chunks) Read(p []byte) (int, error) {
	if c.text == "" {
		return 0, io.EOF
	}
	n := copy(p, c.text[:min(c.size(), len(c.text))])
	c.text = c.text[n:]
	return n, nil
}

// TestReader_DelaysNothing checks that a chunk is returned at once unless it ends like the beginning of a value.
func TestReader_DelaysNothing(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"data: x\n\n": "data: x\n\n", "gh": "gh", "ghp": "ghp", "-ghp_": "-",
		"-" + token[:30]: "-", token + "\n": inside + "\n"} {
		pr, pw := io.Pipe()
		r := known().Reader(pr, func(string) {})
		go pw.Write([]byte(text))
		b := make([]byte, 1<<16)
		n, err := r.Read(b)
		if err != nil || string(b[:n]) != want {
			t.Errorf("%q: %q, %v", text, b[:n], err)
		}
		pr.Close()
	}
}

// TestReader_TakesLaterSecrets checks that a value is found by a reader that began before it was known.
func TestReader_TakesLaterSecrets(t *testing.T) {
	t.Parallel()
	var l Live
	pr, pw := io.Pipe()
	go func() {
		pw.Write([]byte("first "))
		l.Change([]Secret{{"github", []byte(token), inside}})
		pw.Write([]byte(token))
		l.Change(nil)
		pw.Write([]byte(" " + token))
		pw.Close()
	}()
	got, err := io.ReadAll(l.Reader(iotest.OneByteReader(pr), func(string) {}))
	if err != nil || string(got) != "first ghp"+inside[passed:]+" "+token {
		t.Errorf("%q, %v", got, err)
	}
}

// TestReader_FindsAnyLength searches values of any length that is searched, also in a small buffer.
func TestReader_FindsAnyLength(t *testing.T) {
	t.Parallel()
	for _, n := range []int{leastForm, 13, 17, 100, 5000, 16 << 10} {
		value := make([]byte, n)
		for i := range value {
			value[i] = byte(33 + rand.IntN(94))
		}
		for name, text := range texts(string(value)) {
			l := known(Secret{Grant: "any", Value: value})
			found := 0
			got, err := io.ReadAll(l.Reader(strings.NewReader("text "+text+" text"), func(string) { found++ }))
			if err != nil || found == 0 || len(got) != len(text)+10 {
				t.Errorf("%d bytes as %s: found %d times, %v", n, name, found, err)
			}
		}
	}
	if forms := (Secret{Value: []byte("elevenbytes")}).forms(0); forms != nil {
		t.Errorf("a short value is searched: %d forms", len(forms))
	}
}

func TestLive_RemovesFromHeaders(t *testing.T) {
	t.Parallel()
	h := http.Header{"Location": {"https://x.example/?t=" + token}, "Set-Cookie": {"a=b", "t=" + url.QueryEscape(odd)},
		"X-" + token: {"v"}}
	known().Header(h, func(string) {})
	if text := fmt.Sprint(h); strings.Contains(text, token) || strings.Contains(text, url.QueryEscape(odd)) ||
		h.Get("Location") != "https://x.example/?t="+inside || len(h["Set-Cookie"]) != 2 || strings.Count(text, inside) != 2 {
		t.Errorf("%v", h)
	}
}

// TestLive_RemovesFromNames checks that a value is found in the name of a header as package http writes it.
func TestLive_RemovesFromNames(t *testing.T) {
	t.Parallel()
	for _, value := range []string{token, "sk-ant-0123456789abcdefghij", "0a1b2c3d4e5f60718293a4b5c6d7e8f9", strings.ToUpper(token)} {
		live := known(Secret{"names", []byte(value), inside})
		for _, name := range []string{value, "x-" + value, value + "-x", strings.ToLower(value), strings.ToUpper(value)} {
			h, found := http.Header{"Other": {"b"}}, 0
			h.Add(name, "a")
			live.Header(h, func(string) { found++ })
			if text := strings.ToLower(fmt.Sprint(h)); strings.Contains(text, strings.ToLower(value)) || found != 1 || len(h) != 2 {
				t.Errorf("%s as %s: %v", value, name, h)
			}
		}
	}
}

// TestLive_OverwritesValues checks that the values are gone from the memory of the Set.
func TestLive_OverwritesValues(t *testing.T) {
	t.Parallel()
	l := known()
	forms := l.set.forms
	l.Change(nil)
	for _, f := range forms {
		if len(bytes.Trim(f.text, "\x00")) > 0 {
			t.Fatalf("%q", f.text)
		}
	}
}

// BenchmarkFind searches text, JSON and random bytes for 1 and 24 values in all forms.
func BenchmarkFind(b *testing.B) {
	random := make([]byte, 1<<20)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	line := `{"id":12345,"name":"some name","url":"https://api.github.com/repos/acme/thing","node":"MDEwOlJlcG9zaXRvcnk="},` + "\n"
	for _, n := range []int{1, 24} {
		var all []Secret
		for i := range n {
			value := make([]byte, 30)
			for i := range value {
				value[i] = grants[rand.IntN(len(grants))]
			}
			all = append(all, Secret{fmt.Sprint("grant", i), append([]byte("ghp_"), value...), inside})
		}
		set := NewSet(all)
		for name, text := range map[string][]byte{"random": random,
			"json": []byte(strings.Repeat(line, 1<<20/len(line)))} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				begin := cpu()
				for b.Loop() {
					if _, found := set.find(text); found {
						b.Fatal("found")
					}
				}
				b.ReportMetric(float64(len(text)*b.N)/float64(cpu()-begin), "GB/cpu-s")
				b.ReportMetric(float64(len(set.forms)), "forms")
			})
		}
		b.Run(fmt.Sprintf("reader/%d", n), func(b *testing.B) { // as net/http reads an answer
			var l Live
			l.Change(all)
			b.SetBytes(int64(len(random)))
			begin, buffer := cpu(), make([]byte, 32<<10)
			for b.Loop() {
				r := l.Reader(bytes.NewReader(random), func(string) {})
				for {
					if _, err := r.Read(buffer[:16<<10]); err != nil {
						break
					}
				}
			}
			b.ReportMetric(float64(len(random)*b.N)/float64(cpu()-begin), "GB/cpu-s")
		})
	}
}

// cpu returns the time of the process on CPUs: the time on the wall depends on what else runs.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

const grants = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

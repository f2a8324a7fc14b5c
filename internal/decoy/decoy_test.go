package decoy

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// places has a path of each kind, with the pattern that its text must match.
var places = map[string]string{
	"/home/u/.aws/credentials":         `(?s)^\[default\]\naws_access_key_id = AKIA[A-Z2-7]{16}\naws_secret_access_key = \S{40}\n\n\[\w+\]\n`,
	"/home/u/.config/gh/hosts.yml":     `^github.com:\n    users:\n        u:\n            oauth_token: gho_\w{36}\n`,
	"/home/u/.git-credentials":         `^https://u:ghp_\w{36}@github.com\n`,
	"/home/u/.docker/config.json":      `"auth": "`,
	"/home/u/.kube/config":             `(?s)^apiVersion: v1\n.*\n    token: eyJ[\w-]+\.eyJ[\w-]+\.[\w-]{342}\n$`,
	"/home/u/.ssh/id_ed25519":          `(?s)^-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjE.*-----END OPENSSH PRIVATE KEY-----\n$`,
	"/srv/app/server.key":              `^-----BEGIN PRIVATE KEY-----\n`,
	"/home/u/.pgpass":                  `^[\w.-]+:5432:\*:\w+:\w{28}\n`,
	"/home/u/.my.cnf":                  `^\[client\]\n`,
	"/home/u/.vault-token":             `^hvs\.CAESI[\w-]{86}$`,
	"/home/u/.cache/huggingface/token": `^hf_[A-Za-z]{34}$`,
	"/home/u/.cargo/credentials.toml":  `^\[registry\]\ntoken = "cio\w{32}"\n$`,
	"/home/u/.netrc":                   `^machine github.com\n  login u\n  password ghp_\w{36}\n`,
	"/home/u/.npmrc":                   `^//registry.npmjs.org/:_authToken=npm_\w{36}\n$`,
	"/home/u/.pypirc":                  `(?m)^password = pypi-AgEIcHlwaS5vcmc[\w-]{152}$`,
	"/srv/app/.env":                    `^APP_ENV=production\nDATABASE_URL=postgres://`,
}

func made(t *testing.T, p string) File {
	t.Helper()
	f, err := Make(p, Owner{Name: "u", Host: "h"}, rand.Reader, now)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestHoneytoken_HasFormatOfItsPath(t *testing.T) {
	t.Parallel()
	for p, form := range places {
		f, again := made(t, p), made(t, p)
		text := string(f.Text)
		if !regexp.MustCompile(form).MatchString(text) {
			t.Errorf("%s:\n%s", p, text)
		}
		if f.Mode != 0o600 || !f.ModTime.Before(now.AddDate(0, 0, -19)) || f.ModTime.Before(now.AddDate(-1, 0, 0)) {
			t.Errorf("%s: mode %o, of %s", p, f.Mode, f.ModTime)
		}
		if len(f.Tokens) == 0 || bytes.Equal(f.Text, again.Text) {
			t.Errorf("%s: it has no tokens, or is the same in two decoys", p)
		}
		find := map[string]*Finder{}
		for i, token := range f.Tokens {
			find[token] = NewFinder([]Token{{p, token}})
			if _, ok := find[token].In(f.Text); len(token) < LeastToken || !ok {
				t.Errorf("%s: token %d, %q, is not in the text:\n%s", p, i, token, text)
			}
			if _, ok := find[token].In(again.Text); ok {
				t.Errorf("%s: token %d is in another decoy", p, i)
			}
		}
		if Known(p) != (p != "/srv/app/.env") {
			t.Errorf("%s: known is %t", p, Known(p))
		}
	}
}

func TestHoneytoken_IsParsedByItsProgram(t *testing.T) {
	t.Parallel()
	var auths struct {
		Auths map[string]struct{ Auth string }
	}
	if err := json.Unmarshal(made(t, "/home/u/.docker/config.json").Text, &auths); err != nil || len(auths.Auths) != 2 {
		t.Errorf("docker: %v, %v", auths, err)
	}
	for host, a := range auths.Auths {
		if b, err := base64.StdEncoding.DecodeString(a.Auth); err != nil || !strings.HasPrefix(string(b), "u:") {
			t.Errorf("docker: %s has %q, %v", host, b, err)
		}
	}
	for _, p := range []string{"/home/u/.kube/config", "/home/u/.config/gh/hosts.yml"} {
		var any map[string]any
		if err := yaml.Unmarshal(made(t, p).Text, &any); err != nil || len(any) == 0 {
			t.Errorf("%s: %v", p, err)
		}
	}
	if b, rest := pem.Decode(made(t, "/srv/app/server.key").Text); b == nil || len(rest) > 0 {
		t.Error("the key is not PEM")
	}
}

// TestHoneytoken_SSHKeyIsValid lets ssh-keygen derive the public key.
func TestHoneytoken_SSHKeyIsValid(t *testing.T) {
	t.Parallel()
	keygen, err := exec.LookPath("ssh-keygen")
	if err != nil {
		t.Skip("no ssh-keygen")
	}
	f := made(t, "/home/u/.ssh/id_ed25519")
	name := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(name, f.Text, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(keygen, "-y", "-P", "", "-f", name).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "ssh-ed25519 ") || !strings.HasSuffix(string(out), " u@h\n") {
		t.Errorf("%s, %v", out, err)
	}
}

func TestMake_FailsWithoutRandomness(t *testing.T) {
	t.Parallel()
	bad := errors.New("none left")
	for p := range places {
		if f, err := Make(p, Owner{}, iotest.ErrReader(bad), now); !errors.Is(err, bad) || f.Text != nil {
			t.Errorf("%s: %v, %v", p, f, err)
		}
	}
}

// noise draws bytes without a token.
func noise() *rapid.Generator[[]byte] {
	return rapid.OneOf(rapid.SliceOfN(rapid.Byte(), 0, 40),
		rapid.Map(rapid.StringMatching(`[A-Za-z0-9+/=%.]{0,60}`), func(s string) []byte { return []byte(s) }))
}

// parts draws a split of b.
func parts(t *rapid.T, b []byte) (out [][]byte) {
	for len(b) > 0 {
		n := rapid.IntRange(1, min(len(b), 30)).Draw(t, "part")
		out, b = append(out, b[:n]), b[n:]
	}
	return out
}

// TestFinder_FindsTokenAcrossChunks checks that a long enough piece of a token is found and assigned to the right file,
// in any form, between any bytes and in any chunks.
func TestFinder_FindsTokenAcrossChunks(t *testing.T) {
	t.Parallel()
	var tokens []Token
	for p := range places {
		for _, text := range made(t, p).Tokens {
			tokens = append(tokens, Token{p, text})
		}
	}
	f, names := NewFinder(tokens), NewNameFinder(tokens)
	rapid.Check(t, func(t *rapid.T) {
		token := rapid.SampledFrom(tokens).Draw(t, "token")
		text := token.Text[:min(len(token.Text), longest)]
		form := rapid.SampledFrom(forms(text)).Draw(t, "form")
		from := rapid.IntRange(0, len(form)-Piece).Draw(t, "from")
		to := rapid.IntRange(from+Piece, len(form)).Draw(t, "to")
		before, after := noise().Draw(t, "before"), noise().Draw(t, "after")
		all := append(append(bytes.Clone(before), form[from:to]...), after...)
		s, at, found := f.Stream(), "", false
		for _, part := range parts(t, all) {
			if at, found = s.Find(part); found {
				break
			}
		}
		if !found || at != token.Path {
			t.Fatalf("%q of %s in %q: %t, %s", form[from:to], token.Path, all, found, at)
		}
		if at, found := f.In(all); !found || at != token.Path {
			t.Fatalf("at once: %t, %s", found, at)
		}
		s, found = f.Stream(), false
		for _, part := range parts(t, append(bytes.Clone(before), after...)) {
			_, bad := s.Find(part)
			found = found || bad
		}
		if found {
			t.Fatalf("found a token in %q", append(before, after...))
		}
		name := rapid.SampledFrom(nameForms(text)).Draw(t, "name")
		labels := rapid.IntRange(1, 63).Draw(t, "labels")
		if _, found := names.InName(strings.ToUpper(strings.Join(wrapped(name, labels), ".")) + ".evil.example"); !found {
			t.Fatalf("no token found in the name %s, in labels of %d", name, labels)
		}
		if _, found := names.InName("registry.npmjs.org"); found {
			t.Fatal("found a token in a name without one")
		}
	})
}

// TestFinder_FindsTokenWithinEncodedText encodes a token with text around it, so that it starts at any place in a block
// of base64.
func TestFinder_FindsTokenWithinEncodedText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		token := rapid.StringMatching(`[A-Za-z0-9+/]{20,80}`).Draw(t, "token")
		f := NewFinder([]Token{{"/x", token}})
		around := rapid.StringMatching(`[ -~]{0,12}`)
		text := []byte(around.Draw(t, "before") + token + around.Draw(t, "after"))
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding} {
			if _, ok := f.In([]byte(enc.EncodeToString(text))); !ok {
				t.Fatalf("no token found in %s", enc.EncodeToString(text))
			}
		}
	})
}

func TestFinder_WithoutTokensFindsNothing(t *testing.T) {
	t.Parallel()
	for _, f := range []*Finder{NewFinder(nil), NewNameFinder(nil)} {
		if _, ok := f.In([]byte("x")); ok {
			t.Error("a nil Finder found a token")
		}
		if _, ok := f.Stream().Find([]byte("x")); ok {
			t.Error("a nil Stream found a token")
		}
	}
}

func FuzzFind(f *testing.F) {
	const token = "Ab3dEf9hIjKlMn0pQrStUvWxYz"
	f.Add([]byte("x"+token), uint8(3))
	f.Add([]byte(base64.StdEncoding.EncodeToString([]byte("user:"+token))), uint8(1))
	f.Add([]byte(token[:Piece-4]), uint8(5))
	find := NewFinder([]Token{{"/x", token}})
	f.Fuzz(func(t *testing.T, b []byte, n uint8) {
		s, got := find.Stream(), false
		for rest := b; len(rest) > 0 && !got; {
			cut := min(len(rest), int(n)+1)
			_, got = s.Find(rest[:cut])
			rest = rest[cut:]
		}
		if _, want := find.In(b); got != want {
			t.Errorf("in parts of %d: %t, as a whole: %t", n+1, got, want)
		}
		if bytes.Contains(b, []byte(token)) && !got {
			t.Error("not found")
		}
	})
}

func BenchmarkFind(b *testing.B) {
	var tokens []Token
	for p := range places {
		f, err := Make(p, Owner{}, rand.Reader, now)
		if err != nil {
			b.Fatal(err)
		}
		for _, text := range f.Tokens {
			tokens = append(tokens, Token{p, text})
		}
	}
	f := NewFinder(tokens)
	part := make([]byte, 64<<10)
	_, _ = rand.Read(part)
	s := f.Stream()
	b.SetBytes(int64(len(part)))
	for b.Loop() {
		s.Find(part)
	}
}

package secretbox_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secretbox"
	"github.com/coppice-dev/coppice/internal/vfs"
)

func key(t testing.TB, fill byte) secretbox.Key {
	t.Helper()
	k, err := secretbox.New(bytes.Repeat([]byte{fill}, secretbox.Size))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKey_EncryptsAndAuthenticates(t *testing.T) {
	t.Parallel()
	k, other := key(t, 1), key(t, 2)
	rapid.Check(t, func(rt *rapid.T) {
		value := rapid.SliceOf(rapid.Byte()).Draw(rt, "value")
		s, err := k.Seal("a", value)
		if err != nil || !secretbox.Is(s) {
			rt.Fatal(s, err)
		}
		if len(value) >= 6 {
			raw := []byte(s)
			if bytes.Contains(raw, value) || strings.Contains(s, hex.EncodeToString(value)) {
				rt.Fatalf("%q shows %q", s, value)
			}
		}
		if got, err := k.Open("a", s); err != nil || !bytes.Equal(got, value) {
			rt.Fatalf("%q, %v", got, err)
		}
		if again, _ := k.Seal("a", value); again != s {
			rt.Fatal("what is equal is sealed differently")
		}
		if _, err := k.Open("b", s); !fault.Is(err, fault.Corrupt) {
			rt.Fatalf("for another purpose: %v", err)
		}
		if _, err := other.Open("a", s); !fault.Is(err, fault.Denied) {
			rt.Fatalf("by another key: %v", err)
		}
		b := []byte(s)
		at := rapid.IntRange(0, len(b)-1).Draw(rt, "at")
		b[at] = rapid.Byte().Filter(func(c byte) bool { return c != b[at] }).Draw(rt, "byte")
		if got, err := k.Open("a", string(b)); err == nil {
			rt.Fatalf("%q, damaged, is %q", b, got)
		}
		cut := rapid.IntRange(0, len(s)-1).Draw(rt, "cut")
		if got, err := k.Open("a", s[:cut]); err == nil {
			rt.Fatalf("%q, cut, is %q", s[:cut], got)
		}
	})
}

func TestKey_ZeroValueIsRefused(t *testing.T) {
	t.Parallel()
	var none secretbox.Key
	if s, err := none.Seal("a", []byte("x")); err == nil {
		t.Errorf("it seals: %s", s)
	}
	s, err := key(t, 1).Seal("a", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := none.Open("a", s); !fault.Is(err, fault.Denied) {
		t.Errorf("it opens: %v", err)
	}
	if none.Derive("a") != nil {
		t.Error("the zero key derives a secret")
	}
	if _, err := secretbox.New(nil); !fault.Is(err, fault.Invalid) {
		t.Errorf("a key of an empty secret: %v", err)
	}
}

func TestDerive_YieldsDistinctKey(t *testing.T) {
	t.Parallel()
	k := key(t, 1)
	d, err := secretbox.New(k.Derive("journal"))
	if err != nil || d.ID() == k.ID() || bytes.Equal(k.Derive("journal"), k.Derive("journal2")) {
		t.Fatal(d.ID(), err)
	}
	s, _ := k.Seal("a", []byte("x"))
	if _, err := d.Open("a", s); !fault.Is(err, fault.Denied) {
		t.Errorf("it opens what the first one seals: %v", err)
	}
}

func TestKeyFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "seal.key")
	if _, err := secretbox.Load(path); !fault.Is(err, fault.NotFound) {
		t.Fatalf("no file: %v", err)
	}
	k, err := secretbox.Make(vfs.OS(), path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(path); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if l, err := secretbox.Load(path); err != nil || l.ID() != k.ID() {
		t.Errorf("%s, %v; made %s", l.ID(), err, k.ID())
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		kind fault.Kind
	}{
		"open to others": {string(good), 0o640, fault.Denied},
		"another one":    {strings.Replace(string(good), "1", "2", 1), 0o600, fault.Version},
		"empty":          {"", 0o600, fault.Corrupt},
		"cut":            {string(good[:len(good)-1]), 0o600, fault.Corrupt},
		"longer":         {string(good) + "00", 0o600, fault.Corrupt},
		"capitals":       {"coppice seal key 1\n" + strings.Repeat("AB", secretbox.Size) + "\n", 0o600, fault.Corrupt},
		"short":          {"coppice seal key 1\nabab\n", 0o600, fault.Corrupt},
		"something else": {"hello\n", 0o600, fault.Corrupt},
	} {
		bad := filepath.Join(t.TempDir(), "seal.key")
		if err := os.WriteFile(bad, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := secretbox.Load(bad); !fault.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(path, []byte("lost\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := secretbox.Load(path); !errors.Is(err, secretbox.ErrLost) {
		t.Errorf("given up: %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := secretbox.Load(link); err == nil {
		t.Error("a link was followed")
	}
	if names, _ := os.ReadDir(filepath.Dir(path)); len(names) != 1 {
		t.Errorf("%d files are left", len(names))
	}
}

func FuzzOpen(f *testing.F) {
	k := key(f, 1)
	s, err := k.Seal("a", []byte("value"))
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{s, "", "sealed1:", "sealed1:" + k.ID() + ":", "sealed1:" + k.ID() + ":AAAA",
		s[:len(s)-1], s + "A"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		v, err := k.Open("a", in)
		if err == nil {
			if again, _ := k.Seal("a", v); again != in {
				t.Errorf("%q opens, and is not what %q is sealed to", in, v)
			}
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	k, value := key(b, 1), bytes.Repeat([]byte("API_TOKEN=something "), 25)
	for b.Loop() {
		s, err := k.Seal("a", value)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := k.Open("a", s); err != nil {
			b.Fatal(err)
		}
	}
}

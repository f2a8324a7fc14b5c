//go:build linux

package engine

import (
	"crypto/rand"
	"testing"

	sumdb "golang.org/x/mod/sumdb/note"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// signedBy returns a verified log with a chain of keys.
func signedBy(origin string, keys ...string) *format.Verified {
	v := &format.Verified{Log: format.Checkpoint{Origin: origin}, Key: keys[len(keys)-1]}
	for _, k := range keys {
		v.Keys = append(v.Keys, format.LogKey{Key: k})
	}
	return v
}

func TestSigner_TrustsKeyOnFirstUse(t *testing.T) {
	t.Parallel()
	w := newHome(t)
	const origin = "coppice/0123456789abcdef"
	var keys [3]string
	for i := range keys {
		_, vkey, err := sumdb.GenerateKey(rand.Reader, origin)
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = vkey
	}
	first, err := w.Git.Signer(t.Context(), signedBy(origin, keys[0]), "")
	if err != nil || !first.First || first.Since.IsZero() || first.Key != keys[0] {
		t.Fatalf("the first time: %+v, %v", first, err)
	}
	again, err := w.Git.Signer(t.Context(), signedBy(origin, keys[0]), "")
	if err != nil || again.First || !again.Since.Equal(first.Since) {
		t.Errorf("again: %+v, %v", again, err)
	}
	if s, err := w.Git.Signer(t.Context(), signedBy(origin, keys[0], keys[1]), ""); err != nil || s.First ||
		s.Changed != "" || s.Key != keys[1] {
		t.Errorf("a key that the first one signed: %+v, %v", s, err)
	}
	for _, accept := range []string{"", keys[0], keys[1]} {
		if _, err := w.Git.Signer(t.Context(), signedBy(origin, keys[2]), accept); !fault.Is(err, fault.Denied) {
			t.Errorf("another key, accepting %q: %v", accept, err)
		}
	}
	if s, err := w.Git.Signer(t.Context(), signedBy(origin, keys[2]), keys[2]); err != nil || s.Changed != keys[0] {
		t.Errorf("another key, which is accepted: %+v, %v", s, err)
	}
	if _, err := w.Git.Signer(t.Context(), signedBy(origin, keys[0]), ""); !fault.Is(err, fault.Denied) {
		t.Errorf("the first key after that: %v", err)
	}
	own, err := w.Ledger.Keys()
	if err != nil {
		t.Fatal(err)
	}
	if s, err := w.Git.Signer(t.Context(), signedBy(own.Origin(), own[0].Key), ""); err != nil || s.First ||
		!s.Since.IsZero() {
		t.Errorf("this host's log: %+v, %v", s, err)
	}
	if _, err := w.Git.Signer(t.Context(), signedBy(own.Origin(), keys[0]), ""); !fault.Is(err, fault.Denied) {
		t.Errorf("this host's log, with another key: %v", err)
	}
}

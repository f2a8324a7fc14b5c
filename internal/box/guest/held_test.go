//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
)

// bundle returns a heldFiles with one certificate bundle.
func bundle(t *testing.T, text string) (*heldFiles, string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "bundle.pem")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &heldFiles{trust: []*os.File{f}}, name
}

func anotherCA(have []byte) []byte { return bytes.ReplaceAll(have, []byte("old"), []byte("another")) }

func TestHeld_ReplacesACertificateInPlace(t *testing.T) {
	t.Parallel()
	h, name := bundle(t, "first old last")
	if err := h.replaceTrust(anotherCA); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != "first another last" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestHeld_IgnoresReplacedBundle(t *testing.T) {
	t.Parallel()
	h, name := bundle(t, "old")
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(name, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := h.replaceTrust(anotherCA); err != nil {
		t.Error(err)
	}
}

func TestHeld_RefusesLargeBundle(t *testing.T) {
	t.Parallel()
	h, name := bundle(t, "old")
	if err := os.Truncate(name, limit.TrustStoreBytes+1); err != nil {
		t.Fatal(err)
	}
	if err := h.replaceTrust(anotherCA); !fault.Is(err, fault.TooLarge) {
		t.Errorf("%v", err)
	}
}

func TestHeld_ReplacesJavaStores(t *testing.T) {
	t.Parallel()
	h, name := bundle(t, "store with the old gate")
	h.java = map[string]*os.File{"/opt/jdk/lib/security/cacerts": h.trust[0]}
	err := h.replaceJava([]plan.JavaStore{
		{Paths: [][]byte{[]byte("/opt/other/lib/security/cacerts")}, Content: []byte("not laid")},
		{Paths: [][]byte{[]byte("/opt/link/lib/security/cacerts"), []byte("/opt/jdk/lib/security/cacerts")},
			Content: []byte("store with another")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != "store with another" {
		t.Errorf("%q, %v", got, err)
	}
}

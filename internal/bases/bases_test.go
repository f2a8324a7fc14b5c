//go:build linux

package bases

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
)

// oneBase is a Records with one copy of the host.
type oneBase struct {
	Records
	base meta.Base
}

func (r oneBase) Base(context.Context, string) (meta.Base, error) { return r.base, nil }

func TestSweep_KeepsOnlyIndexOfHostCopy(t *testing.T) {
	t.Parallel()
	b := New(Config{Home: t.TempDir(), Records: oneBase{base: meta.Base{Top: "0123456789abcdef"}}})
	if err := b.Sweep(t.Context()); err != nil {
		t.Fatalf("without a directory: %v", err)
	}
	if err := os.MkdirAll(b.Dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	keep := filepath.Base(b.indexPath("0123456789abcdef"))
	for _, name := range []string{keep, "index.fedcba9876543210", "index.fedcba9876543210.tmp"} {
		if err := os.WriteFile(filepath.Join(b.Dir(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names := func() (names []string) {
		left, err := os.ReadDir(b.Dir())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range left {
			names = append(names, f.Name())
		}
		return names
	}
	done := b.Importing()
	if err := b.Sweep(t.Context()); err != nil || len(names()) != 3 {
		t.Errorf("%v are left during an import, %v; want all", names(), err)
	}
	done()
	if err := b.Sweep(t.Context()); err != nil || !slices.Equal(names(), []string{keep}) {
		t.Errorf("%v are left, %v; want %s alone", names(), err, keep)
	}
}

func TestFor_RejectsUnknownSource(t *testing.T) {
	t.Parallel()
	_, err := New(Config{}).For(t.Context(), wire.CreateRequest{From: wire.Source{Kind: "moon"}}, "process", nil)
	if !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
		t.Errorf("%v, hint %q; want an Invalid fault with a hint", err, fault.HintOf(err))
	}
}

// TestWarnings_AreBounded checks that a warning names some paths, and says how many more there are.
func TestWarnings_AreBounded(t *testing.T) {
	t.Parallel()
	got := warnings(layer.Report{Unreadable: make([]string, limit.Listed+2), Changed: []string{"/etc/conf"}})
	if want := "could not be read: 2 more"; len(got) != limit.Listed+2 || got[limit.Listed] != want {
		t.Errorf("%d warnings, the last of unreadable paths is %q; want %q", len(got), got[min(limit.Listed, len(got)-1)], want)
	}
	if want := "changed: /etc/conf"; got[len(got)-1] != want {
		t.Errorf("the last warning is %q, want %q", got[len(got)-1], want)
	}
}

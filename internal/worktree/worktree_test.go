//go:build linux

package worktree

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/limit"
)

func TestRepository_UnusableIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ top, home, want string }{
		{"/", "/home/me/c", "cannot use repository"},
		{"/home/me", "/home/me/c", "Coppice's own"},
		{"/home/me/c/sandboxes", "/home/me/c", "Coppice's own"},
		{"/home/me/x", "/home/me/c", ""},
		{"/tmp/x", "/home/me/c", ""},
	} {
		if err := canLie(c.top, c.home); (err == nil) != (c.want == "") || err != nil &&
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with the home %s: %v", c.top, c.home, err)
		}
	}
	for _, c := range []struct {
		top, tier string
		ok        bool
	}{
		{"/tmp/x", "process", false}, {"/run/x", "supervised", false}, {"/tmp/x", workspace, true}, {"/tmpx", "process", true},
	} {
		if err := shown(c.top, c.tier); (err == nil) != c.ok || err != nil && fault.HintOf(err) == "" {
			t.Errorf("%s in tier %s: %v", c.top, c.tier, err)
		}
	}
	for _, c := range []struct {
		hidden string
		ok     bool
	}{{"/home/me", false}, {"/home/me/*", false}, {"/home/me/x", false}, {"/home/me/x/.env", true}, {"/objects", false},
		{"/home/you", true}} {
		if err := visible("/home/me/x", []string{"/objects/1"}, []string{c.hidden}); (err == nil) != c.ok {
			t.Errorf("with %s hidden: %v", c.hidden, err)
		}
	}
}

// TestGitIndex_RefusesTooLarge checks that the size is checked before reading, since an index of the maximum size
// would take a gigabyte of memory.
func TestGitIndex_RefusesTooLarge(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "index"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(limit.IndexBytes + 1); err != nil {
		t.Skip("needs sparse-files: " + err.Error())
	}
	if b, err := readIndex(f); !fault.Is(err, fault.TooLarge) {
		t.Errorf("%d bytes, %v, want too_large", len(b), err)
	}
}

func TestRecordable(t *testing.T) {
	t.Parallel()
	look := func(p string) (layer.Entry, error) {
		if p == "/r/src" {
			return layer.Entry{}, nil
		}
		return layer.Entry{}, fault.New(fault.NotFound, "%s not found", p)
	}
	for p, refused := range map[string]bool{
		"/r": true, "/": true, "/r/.git": true, "/r/.git/x": true, "/r/src": true,
		"/r/node_modules": false, "/r/.github": false, "/rx": false, "/home/me/.cache": false,
	} {
		err := recordable("/r", []string{p}, look)
		if refused != (err != nil) || refused && (!fault.Is(err, fault.Conflict) || fault.HintOf(err) == "") {
			t.Errorf("%s: %v, hint %q", p, err, fault.HintOf(err))
		}
	}
}

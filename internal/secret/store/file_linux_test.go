package store

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func atNoon() time.Time { return noon }

// write writes a file and returns its path.
func write(t *testing.T, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFile_ReadsValues(t *testing.T) {
	t.Parallel()
	f := NewFile(atNoon)
	for _, c := range []struct{ content, field, want, user string }{
		{mark, "", mark, ""},
		{mark + "\n", "", mark, ""},
		{mark + "\r\n", "", mark, ""},
		{`{"a":{"b":["x","` + mark + `"]}}`, "/a/b/1", mark, ""},
		{`{"a/b":{"~":"` + mark + `"}}`, "/a~1b/~0", mark, ""},
		{`{"":"` + mark + `"}`, "/", mark, ""},
		{`{"t":"` + mark + `","user":"alice","expires":"2026-11-28T13:00:00Z"}`, "/t", mark, "alice"},
		{`{"t":"` + mark + `","expiresAt":1795874400000}`, "/t", mark, ""},
		{`{"t":"\u0058yzzy"}`, "/t", "Xyzzy", ""},
	} {
		v, err := f.Get(t.Context(), Ref{Path: write(t, c.content, 0o600), Field: c.field})
		if v.User != c.user || strings.Contains(c.content, "expires") == v.Until.IsZero() {
			t.Errorf("%q %v", v.User, v.Until)
		}
		mustBe(t, v, err, c.want)
	}
}

func TestFile_RefusesOthers(t *testing.T) {
	t.Parallel()
	f := NewFile(atNoon)
	dir := t.TempDir()
	file := write(t, mark, 0o600)
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fault.Kind{
		link: fault.Denied, fifo: fault.Denied, dir: fault.Denied, "/dev/null": fault.Denied,
		write(t, mark, 0o640): fault.Denied, write(t, mark, 0o604): fault.Denied, write(t, mark, 0o620): fault.Denied,
		dir + "/none": fault.NotFound, "relative": fault.Invalid, file + "\n": fault.Invalid,
		write(t, strings.Repeat(mark, 4000), 0o600): fault.TooLarge, write(t, strings.Repeat("x", MaxValue+1), 0o600): fault.TooLarge,
		write(t, "", 0o600): fault.Invalid, write(t, mark+"\n\n", 0o600): fault.Invalid,
	} {
		_, err := f.Get(t.Context(), Ref{Path: path})
		mustFail(t, err, want)
	}
	// A file of another user, which only root could create.
	st := unix.Stat_t{Mode: unix.S_IFREG | 0o600, Uid: 1001}
	mustFail(t, checkPrivate("/f", &st, 1000, 0o077), fault.Denied)
	for _, uid := range []uint32{0, 1000} {
		st.Uid = uid
		if err := checkPrivate("/f", &st, 1000, 0o077); err != nil {
			t.Error(err)
		}
	}
}

func TestFile_RefusesWrongFields(t *testing.T) {
	t.Parallel()
	f := NewFile(atNoon)
	for _, c := range []struct {
		content, field string
		want           fault.Kind
	}{
		{mark, "/a", fault.Invalid},
		{`{"a":"` + mark + `"} x`, "/a", fault.Invalid},
		{`{"a":"` + mark + `"}`, "/b", fault.NotFound},
		{`{"a":"` + mark + `"}`, "/A", fault.NotFound},
		{`{"a":"` + mark + `"}`, "/a/b", fault.NotFound},
		{`["` + mark + `"]`, "/1", fault.NotFound},
		{`["` + mark + `"]`, "/00", fault.NotFound},
		{`["` + mark + `"]`, "/-", fault.NotFound},
		{`["` + mark + `"]`, "/-1", fault.NotFound},
		{`["` + mark + `"]`, "a", fault.Invalid},
		{`{"a":["` + mark + `"]}`, "/a", fault.Invalid},
		{`{"a":4711}`, "/a", fault.Invalid},
		{`{"a":null}`, "/a", fault.Invalid},
		{`null`, "/a", fault.NotFound},
		{`{"a":"` + mark + `\n"}`, "/a", fault.Invalid},
		{`{"a":"` + mark + `","expires":"2026-11-28T12:00:00Z"}`, "/a", fault.Unavailable},
		{`{"a":"` + mark + `","expiresAt":1764331200000}`, "/a", fault.Unavailable},
		{`{"a":"` + mark + `","expires":"` + mark + `"}`, "/a", fault.Invalid},
		{`{"a":"` + mark + `","user":["` + mark + `"]}`, "/a", fault.Invalid},
	} {
		_, err := f.Get(t.Context(), Ref{Path: write(t, c.content, 0o600), Field: c.field})
		mustFail(t, err, c.want)
	}
}

func TestReadOnlyStores(t *testing.T) {
	t.Parallel()
	for _, s := range []Store{NewFile(atNoon), NewCommand(nil, atNoon), NewEnv(nil)} {
		mustFail(t, s.Put(context.Background(), Ref{Name: "A"}, []byte(mark)), fault.Unsupported)
		mustFail(t, s.Delete(context.Background(), Ref{Name: "A"}), fault.Unsupported)
		if err := s.Check(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

func TestEnv(t *testing.T) {
	t.Parallel()
	vars := map[string]string{"A": mark + "\n", "EMPTY": "", "TWO": mark + "\nx"}
	e := NewEnv(func(name string) (string, bool) { s, ok := vars[name]; return s, ok })
	v, err := e.Get(t.Context(), Ref{Name: "A"})
	mustBe(t, v, err, mark)
	for name, want := range map[string]fault.Kind{
		"EMPTY": fault.Invalid, "TWO": fault.Invalid, "NONE": fault.NotFound, "A=B": fault.Invalid, "": fault.Invalid,
	} {
		_, err := e.Get(t.Context(), Ref{Name: name})
		mustFail(t, err, want)
	}
}

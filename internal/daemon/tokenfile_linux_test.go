package daemon

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

func TestSafeToken(t *testing.T) {
	t.Parallel()
	const home = "/var/lib/coppice"
	private := append([]string{home}, rootspec.Reserved...)
	for name, tc := range map[string]struct {
		path      string
		mode, dir fs.FileMode
		uid       uint32
		owner     int // 0: the daemon is root
		want      fault.Kind
	}{
		"a secret of Docker":   {path: "/run/secrets/token", mode: 0o444, dir: 0o755},
		"in a user namespace":  {path: "/run/secrets/token", mode: 0o444, dir: 0o755, uid: 65534, owner: -1},
		"the same as a user":   {path: "/run/secrets/token", mode: 0o444, dir: 0o755, owner: 1000},
		"of the daemon's user": {path: "/run/secrets/token", mode: 0o400, dir: 0o755, uid: 1000, owner: 1000},
		"with an fsGroup":      {path: "/run/secrets/c/..2026/token", mode: 0o440, dir: 0o2755, owner: 1000},
		"of another user, as a user": {path: "/run/secrets/token", mode: 0o444, dir: 0o755, uid: 1001, owner: 1000,
			want: fault.Denied},
		"a secret of Kubernetes":      {path: "/run/secrets/c/..2026/token", mode: 0o644, dir: 0o755},
		"in the home":                 {path: home + "/token", mode: 0o644, dir: 0o700},
		"beside the home":             {path: home + "-token", mode: 0o644, dir: 0o755, want: fault.Denied},
		"private, seen in sandboxes":  {path: "/etc/token", mode: 0o400, dir: 0o755, want: fault.Denied},
		"readable, seen in sandboxes": {path: "/etc/token", mode: 0o444, dir: 0o755, want: fault.Denied},
		"a name that looks like /run": {path: "/running/token", mode: 0o444, dir: 0o755, want: fault.Denied},
		"writable by others":          {path: "/run/secrets/token", mode: 0o666, dir: 0o755, want: fault.Denied},
		"writable by a group":         {path: "/run/secrets/token", mode: 0o460, dir: 0o755, want: fault.Denied},
		"in a directory of all users": {path: "/tmp/token", mode: 0o400, dir: fs.ModeSticky | 0o777, want: fault.Denied},
		"of another user":             {path: "/tmp/a/token", mode: 0o400, dir: 0o755, uid: 1001, want: fault.Denied},
		"a directory":                 {path: "/run/secrets", mode: fs.ModeDir | 0o755, dir: 0o755, want: fault.Invalid},
		"a device":                    {path: "/dev/zero", mode: fs.ModeDevice | 0o444, dir: 0o755, want: fault.Invalid},
	} {
		err := safeToken(tc.path, state{tc.mode, tc.uid}, state{tc.dir, tc.uid}, private, tc.owner)
		if tc.want == "" && err != nil || tc.want != "" && (!fault.Is(err, tc.want) || fault.HintOf(err) == "") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// state is the state of a file.
type state struct {
	mode fs.FileMode
	uid  uint32
}

func (s state) Mode() fs.FileMode  { return s.mode }
func (s state) Sys() any           { return &syscall.Stat_t{Uid: s.uid} }
func (s state) IsDir() bool        { return s.mode.IsDir() }
func (s state) ModTime() time.Time { return time.Time{} }
func (s state) Name() string       { return "" }
func (s state) Size() int64        { return 0 }

// newTokenFile returns the token file of a directory, which has none yet. ended receives the tokens that end.
func newTokenFile(t *testing.T) (f *tokenFile, ended chan string) {
	t.Helper()
	dir := t.TempDir()
	db, err := meta.Open(t.Context(), filepath.Join(dir, "coppice.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	private, err := unseen(dir)
	if err != nil {
		t.Fatal(err)
	}
	ended = make(chan string, 64)
	return &tokenFile{name: filepath.Join(dir, "token"), private: private, owner: os.Getuid(),
		tokens: &auth.Configured{Store: tokenStore{db}}, drop: func(id string) { ended <- id }, log: slog.New(slog.DiscardHandler)}, ended
}

func TestTokenFile_FollowsContent(t *testing.T) {
	t.Parallel()
	f, ended := newTokenFile(t)
	tokens := &auth.Tokens{Store: f.tokens}
	good, other := NewToken(), NewToken()
	write := func(text string) {
		if err := os.WriteFile(f.name, []byte(text), 0o400); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(f.name, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.load(t.Context()); !fault.Is(err, fault.NotFound) {
		t.Errorf("missing: %v", err)
	}
	write("\n" + good + "\r\n")
	if err := f.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tok, err := tokens.Verify(t.Context(), good); err != nil || tok.Scope != auth.Admin {
		t.Errorf("%+v, %v", tok, err)
	}
	write(other)
	if err := f.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.Verify(t.Context(), good); err == nil || len(ended) != 1 {
		t.Errorf("after rotation: %v, %d ended", err, len(ended))
	}
	for _, bad := range []string{"", " \n", "secret", good + " " + other, other + "\x00", other[:20] + "\n" + other[20:],
		strings.Repeat("x", 5000)} {
		write(other)
		if err := f.load(t.Context()); err != nil {
			t.Fatal(err)
		}
		write(bad)
		err := f.load(t.Context())
		if !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" || !strings.Contains(err.Error(), f.name) ||
			len(bad) > 2 && strings.Contains(err.Error()+fault.HintOf(err), bad) {
			t.Errorf("%.20q: %v", bad, err)
		}
		if _, err := tokens.Verify(t.Context(), other); err == nil {
			t.Errorf("%.20q: the token before is still valid", bad)
		}
	}
	real := filepath.Join(filepath.Dir(f.name), "..data")
	write(other)
	if err := errors.Join(os.Rename(f.name, real), os.Symlink("..data", f.name), f.load(t.Context())); err != nil {
		t.Errorf("a link: %v", err)
	}
	if err := os.Remove(f.name); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(f.name, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.load(t.Context()); !fault.Is(err, fault.Invalid) {
		t.Errorf("a FIFO: %v", err)
	}
}

func TestTokenFile_WatchEndsWithContext(t *testing.T) {
	t.Parallel()
	f, _ := newTokenFile(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { f.watch(ctx); close(done) }()
	cancel()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("it still runs")
	}
}

//go:build linux && (amd64 || arm64)

package gvisor

import (
	"encoding/json"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
)

// TestHiddenPaths_HaveWhatIsBelow checks which paths a list of hidden ones covers.
func TestHiddenPaths_HaveWhatIsBelow(t *testing.T) {
	t.Parallel()
	var list any
	if err := json.Unmarshal([]byte(`["/root/.ssh", "/run/user/*", "/etc/shadow", ""]`), &list); err != nil {
		t.Fatal(err)
	}
	h := hiddenOf(list)
	for p, want := range map[string]bool{
		"/root/.ssh": true, "/root/.ssh/id": true, "/root/.ssh/a/b": true, "/root/.sshd": false, "/root": false, "/": false,
		"/run/user": false, "/run/user/1000": true, "/etc/shadow": true, "/etc/shadow-": false, "": false, "/x//": false,
	} {
		if h.has(p) != want {
			t.Errorf("%q: %t", p, !want)
		}
	}
	if h.none() || !hiddenOf(nil).none() || hiddenOf(nil).has("/") {
		t.Error("a list is not empty, and none is")
	}
}

// TestFileCalls_SayWhatRefused checks the rule by which a refused file counts.
func TestFileCalls_SayWhatRefused(t *testing.T) {
	t.Parallel()
	f := fileCalls{hiddenOf([]any{"/etc/shadow"})}
	for _, c := range []struct {
		errno unix.Errno
		at    located
		want  string
	}{
		{unix.ENOENT, located{path: "/etc/shadow"}, wire.RuleHidden},
		{unix.ENOTDIR, located{path: "/etc/shadow/x"}, wire.RuleHidden},
		{unix.ENOENT, located{path: "/etc/none"}, ""},
		{unix.EROFS, located{path: "/a", owner: 7, owned: true}, wire.RuleReadOnly},
		{unix.EACCES, located{path: "/a", owner: 7, owned: true}, ""},
		{unix.EPERM, located{path: "/a", owner: 7, owned: true}, ""},
		{unix.EACCES, located{path: "/a", owner: 0, owned: true}, wire.RulePermission},
		{unix.EACCES, located{path: "/a", owner: 7}, wire.RulePermission}, // the owner is not known
	} {
		if got := f.rule(c.errno, c.at, 7); got != c.want {
			t.Errorf("%v of %+v: %q", c.errno, c.at, got)
		}
	}
}

package repo

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Env is the complete environment of the user's git processes.
type Env struct {
	Home   string // HOME: where the user's configuration is
	Config string // XDG_CONFIG_HOME, or ""
	Path   string // PATH: where the user's filters (LFS) are found; "" is /usr/bin:/bin
}

// Git is the git program of the host. It is safe for concurrent use.
type Git struct {
	program string
	user    Env
}

// oldest is the first version with all required features: merge-tree --write-tree.
var oldest = [2]int{2, 38}

// Find checks the program at path, or, if path is "", the first git in user.Path. The result is fixed: later
// calls do not search again. Unsupported: git is missing or older than 2.38.
func Find(ctx context.Context, path string, user Env) (*Git, error) {
	if user.Path == "" {
		user.Path = "/usr/bin:/bin"
	}
	if path == "" {
		path = look(user.Path)
	}
	if !filepath.IsAbs(path) {
		return nil, fault.New(fault.Unsupported, "git is not installed").
			WithHint("install git 2.38 or newer: sudo apt-get install git")
	}
	g := &Git{program: path, user: user}
	out, err := g.run(ctx, call{args: []string{"version"}, env: cleanEnv()})
	if err != nil {
		return nil, fault.Wrap(err, "read the version of %s", path)
	}
	if v, ok := parseVersion(string(out)); !ok || v[0] < oldest[0] || v[0] == oldest[0] && v[1] < oldest[1] {
		return nil, fault.New(fault.Unsupported, "%s has unsupported version %q: must be 2.38 or newer", path,
			clip(strings.TrimSpace(string(out)))).
			WithHint("install git 2.38 or newer")
	}
	return g, nil
}

// look finds git in the absolute directories of a PATH.
func look(path string) string {
	for _, dir := range filepath.SplitList(path) {
		name := filepath.Join(dir, "git")
		if info, err := os.Stat(name); filepath.IsAbs(dir) && err == nil && info.Mode().IsRegular() &&
			info.Mode()&0o111 != 0 {
			return name
		}
	}
	return ""
}

// parseVersion parses "git version 2.39.5 (...)".
func parseVersion(s string) (v [2]int, ok bool) {
	rest, found := strings.CutPrefix(s, "git version ")
	parts := strings.SplitN(rest, ".", 3)
	if !found || len(parts) < 2 {
		return v, false
	}
	for i := range v {
		n, err := strconv.Atoi(strings.TrimSpace(parts[i]))
		if err != nil {
			return v, false
		}
		v[i] = n
	}
	return v, true
}

package cli

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// repository has the flags for the git repository of a sandbox.
type repository struct {
	dir   string
	at    string
	dirty bool
	none  bool
}

func (r *repository) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.dir, "repo", "",
		"work on the git repository that contains `DIR` (default: the current directory, with --from host)")
	f.StringVar(&r.at, "at", "", "start at revision `REV` of the repository (default: HEAD)")
	f.BoolVar(&r.dirty, "dirty", false,
		"include uncommitted changes: modified files, and new ones that are not ignored")
	f.BoolVar(&r.none, "no-repo", false, "do not work on a git repository")
}

// repository returns the request to the daemon, which decides. The CLI checks only for the presence of a .git.
func (a *app) repository(r *repository, from string) (*wire.RepoRequest, error) {
	asked := r.dir != "" || r.at != "" || r.dirty
	switch {
	case r.none && asked:
		return nil, &usageError{
			msg:  "--no-repo is mutually exclusive with --repo, --at and --dirty",
			hint: "drop one of them",
		}
	case strings.Contains(r.dir, "://"):
		return nil, &usageError{
			msg:  "--repo " + r.dir + " is a URL: a sandbox works on a repository of this machine",
			hint: "clone it first: git clone " + r.dir,
		}
	case r.none, !asked && (from != "host" || a.getenv("COPPICE_HOST") != ""):
		return nil, nil
	case a.getenv("COPPICE_HOST") != "" && r.dir == "":
		return nil, &usageError{
			msg:  "--at and --dirty require a local repository, and COPPICE_HOST names another machine",
			hint: "name one there: --repo DIR"}
	}
	dir, err := filepath.Abs(r.dir)
	if err != nil {
		return nil, fault.Wrap(err, "find the repository %s", r.dir)
	}
	if !asked && !inRepository(dir) {
		return nil, nil
	}
	return &wire.RepoRequest{Dir: dir, At: r.at, Dirty: r.dirty, Maybe: !asked}, nil
}

// inRepository reports whether a directory or one of its parents has a .git.
func inRepository(dir string) bool {
	for {
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			return true
		}
		up := filepath.Dir(dir)
		if up == dir {
			return false
		}
		dir = up
	}
}

//go:build linux && (amd64 || arm64)

package gvisor

import (
	pathname "path"
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/fspath"
	sentry "gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// located is where the path of a refused call leads.
type located struct {
	path   string // absolute, in the sandbox's root, without links as far as it exists; any bytes
	exists bool
	owner  uint32 // owner of its deepest part that exists: of the file or, for an entry, of the directory
	owned  bool   // owner is known, which it is not of a missing file
}

// Bounds of locate, for a path that is made to be expensive.
const (
	maxFollowed = 40 // links, as in Linux
	maxShorter  = 64 // parents that are looked for
)

// locate follows a path of a task as far as it exists, with the rights of the sandbox's kernel. entry says that the
// last name is an entry of a directory; missing, that the file does not exist. The work is that of a few calls of the
// task.
func locate(t *sentry.Task, dir int32, name string, follow, entry, missing bool) (located, bool) {
	root := t.FSContext().RootDirectory()
	defer root.DecRef(t)
	start, ok := startOf(t, root, dir, name)
	if !ok {
		return located{}, false
	}
	defer func() { start.DecRef(t) }()
	l := look{t: t, files: t.Kernel().VFS(), creds: auth.NewRootCredentials(t.Kernel().RootUserNamespace()), root: root}
	parts := components(name)
	for range maxFollowed {
		most := len(parts)
		if most > 0 && (entry || missing) {
			most--
		}
		at, n, ok := l.deepest(start, parts, most, follow)
		if !ok {
			return located{}, false
		}
		rest := parts[n:]
		if len(rest) > 1 || len(rest) == 1 && follow && !entry {
			if to, err := l.files.ReadlinkAt(t, l.creds, l.pop(at, rest[:1], false)); err == nil {
				parts = append(components(to), rest[1:]...)
				start.DecRef(t)
				if start = at; strings.HasPrefix(to, "/") {
					at.DecRef(t)
					start = root
					start.IncRef()
				}
				continue
			}
		}
		defer at.DecRef(t)
		return l.result(at, rest, missing), true
	}
	return located{}, false
}

// startOf returns the directory at which a path starts, with a reference.
func startOf(t *sentry.Task, root vfs.VirtualDentry, dir int32, name string) (vfs.VirtualDentry, bool) {
	switch {
	case strings.HasPrefix(name, "/"):
		root.IncRef()
		return root, true
	case dir == linux.AT_FDCWD:
		return t.FSContext().WorkingDirectory(), true
	}
	f := t.GetFile(dir)
	if f == nil {
		return vfs.VirtualDentry{}, false
	}
	defer f.DecRef(t)
	at := f.VirtualDentry()
	at.IncRef()
	return at, true
}

// components returns the names in a path.
func components(p string) (out []string) {
	for name := range strings.SplitSeq(p, "/") {
		if name != "" && name != "." {
			out = append(out, name)
		}
	}
	return out
}

// look looks up files for locate.
type look struct {
	t     *sentry.Task
	files *vfs.VirtualFilesystem
	creds *auth.Credentials
	root  vfs.VirtualDentry // the task's
}

func (l look) pop(at vfs.VirtualDentry, parts []string, follow bool) *vfs.PathOperation {
	return &vfs.PathOperation{Root: l.root, Start: at, Path: fspath.Parse(strings.Join(parts, "/")),
		FollowFinalSymlink: follow}
}

// deepest returns the deepest file that parts lead to from start, with at most most of them, and how many it took. The
// result has a reference. ok is false if too many parts are missing.
func (l look) deepest(
	start vfs.VirtualDentry, parts []string, most int, follow bool,
) (at vfs.VirtualDentry, n int, ok bool) {
	for n = most; n > 0 && n > most-maxShorter; n-- {
		at, err := l.files.GetDentryAt(l.t, l.creds, l.pop(start, parts[:n], follow || n < len(parts)),
			&vfs.GetDentryOptions{})
		if err == nil {
			return at, n, true
		}
	}
	if n > 0 {
		return vfs.VirtualDentry{}, 0, false
	}
	start.IncRef()
	return start, 0, true
}

// result describes the file at, and what is missing below it. The owner is left out if the file of the call is missing:
// looking at it takes as long as a name takes to look up, and missing files are many (a compiler looks for each header
// in each of its directories).
func (l look) result(at vfs.VirtualDentry, rest []string, missing bool) located {
	top := l.t.MountNamespace().Root(l.t)
	defer top.DecRef(l.t)
	p, err := l.files.PathnameWithDeleted(l.t, top, at)
	if err != nil {
		p = "/" // the file is known only by what is below it
	}
	out := located{path: pathname.Join(append([]string{p}, rest...)...), exists: len(rest) == 0}
	if missing {
		return out
	}
	st, err := l.files.StatAt(l.t, l.creds, l.pop(at, nil, true), &vfs.StatOptions{Mask: linux.STATX_UID})
	if err == nil && st.Mask&linux.STATX_UID != 0 {
		out.owner, out.owned = st.UID, true
	}
	return out
}

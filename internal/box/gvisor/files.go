//go:build linux && (amd64 || arm64)

package gvisor

import (
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	sentry "gvisor.dev/gvisor/pkg/sentry/kernel"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/refusals"
)

// fileCalls reports calls that the sandbox's kernel has refused because of a file. It looks at a call after it has
// failed, and changes neither its result nor the file.
type fileCalls struct {
	hidden hiddenPaths
}

// fileOp describes a call that names files.
type fileOp struct {
	name  string
	op    string // one of the constants of wire; "" if the flags of open(2) say it
	paths []pathArg
	flags int // number of the argument with flags, or none
}

// pathArg describes an argument that names a file.
type pathArg struct {
	dir, path int  // numbers of the arguments; dir is none for the working directory
	link      bool // a link is not followed
	entry     bool // the entry of a directory is changed, which the owner of the directory may
}

// none is the number of a missing argument.
const none = -1

// fileOps are the calls whose refusals count, by number.
var fileOps = withArch(map[uintptr]fileOp{
	unix.SYS_OPENAT:       {"openat", "", []pathArg{{dir: 0, path: 1}}, 2},
	unix.SYS_OPENAT2:      {"openat2", "", []pathArg{{dir: 0, path: 1}}, 2},
	unix.SYS_EXECVE:       {"execve", wire.FileExecute, []pathArg{{dir: none, path: 0}}, none},
	unix.SYS_EXECVEAT:     {"execveat", wire.FileExecute, []pathArg{{dir: 0, path: 1}}, 4},
	unix.SYS_TRUNCATE:     {"truncate", wire.FileWrite, []pathArg{{dir: none, path: 0}}, none},
	unix.SYS_CHDIR:        {"chdir", wire.FileEnter, []pathArg{{dir: none, path: 0}}, none},
	unix.SYS_UNLINKAT:     {"unlinkat", wire.FileRemove, []pathArg{{dir: 0, path: 1, entry: true}}, none},
	unix.SYS_MKDIRAT:      {"mkdirat", wire.FileCreate, []pathArg{{dir: 0, path: 1, entry: true}}, none},
	unix.SYS_MKNODAT:      {"mknodat", wire.FileCreate, []pathArg{{dir: 0, path: 1, entry: true}}, none},
	unix.SYS_SYMLINKAT:    {"symlinkat", wire.FileCreate, []pathArg{{dir: 1, path: 2, entry: true}}, none},
	unix.SYS_LINKAT:       {"linkat", wire.FileCreate, linked, none},
	unix.SYS_RENAMEAT:     {"renameat", wire.FileRename, renamed, none},
	unix.SYS_RENAMEAT2:    {"renameat2", wire.FileRename, renamed, none},
	unix.SYS_FCHMODAT:     {"fchmodat", wire.FileChange, []pathArg{{dir: 0, path: 1}}, none},
	unix.SYS_FCHMODAT2:    {"fchmodat2", wire.FileChange, []pathArg{{dir: 0, path: 1}}, 3},
	unix.SYS_FCHOWNAT:     {"fchownat", wire.FileChange, []pathArg{{dir: 0, path: 1}}, 4},
	unix.SYS_UTIMENSAT:    {"utimensat", wire.FileChange, []pathArg{{dir: 0, path: 1}}, 3},
	unix.SYS_SETXATTR:     {"setxattr", wire.FileChange, []pathArg{{dir: none, path: 0}}, none},
	unix.SYS_LSETXATTR:    {"lsetxattr", wire.FileChange, []pathArg{{dir: none, path: 0, link: true}}, none},
	unix.SYS_REMOVEXATTR:  {"removexattr", wire.FileChange, []pathArg{{dir: none, path: 0}}, none},
	unix.SYS_LREMOVEXATTR: {"lremovexattr", wire.FileChange, []pathArg{{dir: none, path: 0, link: true}}, none},
})

// The arguments of renameat(2) and linkat(2).
var (
	renamed = []pathArg{{dir: 0, path: 1, entry: true}, {dir: 2, path: 3, entry: true}}
	linked  = []pathArg{{dir: 0, path: 1, link: true}, {dir: 2, path: 3, entry: true}}
)

// watch makes refused look at a call that has failed.
func (c *calls) watch(table *sentry.SyscallTable, nr uintptr) {
	call := table.Table[nr]
	next, op := call.Fn, fileOps[nr]
	if next == nil {
		return // the kernel does not have this call
	}
	call.Fn = func(t *sentry.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *sentry.SyscallControl, error) {
		r, control, err := next(t, sysno, args)
		if err != nil {
			if f, s := c.files.Load(), c.refusals.Load(); f != nil && s != nil && !isInit(t) {
				f.refused(s, t, op, args, err)
			}
		}
		return r, control, err
	}
	table.Table[nr] = call
}

// Errors that a refused file causes. Every lookup of a missing file fails with the last two, so these count only for a
// hidden path.
var (
	refusing = []*errors.Error{linuxerr.EACCES, linuxerr.EPERM, linuxerr.EROFS}
	missing  = []*errors.Error{linuxerr.ENOENT, linuxerr.ENOTDIR}
)

// errnoOf returns the error in list that err is.
func errnoOf(err error, list []*errors.Error) (unix.Errno, bool) {
	for _, e := range list {
		if linuxerr.Equals(e, err) {
			return linuxerr.ToUnix(e), true
		}
	}
	return 0, false
}

// refused reports a call that failed with err if a file outside of the sandbox's own was refused. The path is what the
// caller's memory has now: another of its threads may have changed it since the kernel read it.
func (f *fileCalls) refused(
	to *refusals.Summary, t *sentry.Task, op fileOp, args arch.SyscallArguments, err error,
) {
	errno, gone := errnoOf(err, missing)
	if gone && f.hidden.none() {
		return
	}
	if !gone {
		var ok bool
		if errno, ok = errnoOf(err, refusing); !ok {
			return
		}
	}
	flags, ok := op.flagsOf(t, args)
	if !ok {
		return
	}
	for _, p := range op.paths {
		name, dir := "", int32(linux.AT_FDCWD)
		if p.dir != none {
			dir = args[p.dir].Int()
		}
		if at := args[p.path].Pointer(); at != 0 {
			if name, err = t.CopyInString(at, linux.PATH_MAX); err != nil {
				continue
			}
		}
		found, ok := locate(t, dir, name, !p.link && flags&op.noFollow() == 0, p.entry, gone)
		if !ok {
			continue
		}
		rule := f.rule(errno, found, uint32(t.Credentials().EffectiveKUID))
		if rule == "" {
			continue
		}
		file := refusals.File{Path: found.path, Op: op.wanted(flags, found.exists), Rule: rule}
		addRefusal(to, t, refusals.Refusal{Call: op.name, Errno: errno, File: file})
		return
	}
}

// rule returns what refused a file to a caller with an effective user, or "" if it is not a refusal that counts.
func (f *fileCalls) rule(errno unix.Errno, at located, uid uint32) string {
	switch {
	case errno == unix.ENOENT || errno == unix.ENOTDIR:
		if f.hidden.has(at.path) {
			return wire.RuleHidden
		}
		return ""
	case errno == unix.EROFS:
		return wire.RuleReadOnly
	case at.owned && at.owner == uid:
		return "" // the caller could change the mode
	}
	return wire.RulePermission
}

// flagsOf returns the flags of a call. ok is false if nothing is accessed, as with O_PATH.
func (o fileOp) flagsOf(t *sentry.Task, args arch.SyscallArguments) (flags uint64, ok bool) {
	switch {
	case o.flags == none:
		return 0, true
	case o.name == "openat2":
		var how [8]byte
		if _, err := t.CopyInBytes(args[o.flags].Pointer(), how[:]); err != nil {
			return 0, false
		}
		for i, b := range how {
			flags |= uint64(b) << (8 * i)
		}
	default:
		flags = uint64(args[o.flags].Uint())
	}
	return flags, o.op != "" || flags&linux.O_PATH == 0
}

// noFollow is the flag with which a call does not follow a link.
func (o fileOp) noFollow() uint64 {
	if o.op == "" {
		return linux.O_NOFOLLOW
	}
	return linux.AT_SYMLINK_NOFOLLOW
}

// wanted returns what a call was to do.
func (o fileOp) wanted(flags uint64, exists bool) string {
	switch {
	case o.op != "":
		return o.op
	case flags&linux.O_CREAT != 0 && !exists:
		return wire.FileCreate
	case flags&linux.O_ACCMODE != linux.O_RDONLY || flags&linux.O_TRUNC != 0:
		return wire.FileWrite
	}
	return wire.FileRead
}

// hiddenPaths are the paths that a policy hides: plan.Guest.Hidden.
type hiddenPaths struct {
	at    map[string]bool // a path, with what is below it
	below map[string]bool // what is below a path
}

// hiddenOf returns the paths of a configuration that has passed through JSON.
func hiddenOf(list any) hiddenPaths {
	h := hiddenPaths{at: map[string]bool{}, below: map[string]bool{}}
	all, _ := list.([]any)
	for _, v := range all {
		p, _ := v.(string)
		if dir, entries := strings.CutSuffix(p, "/*"); entries {
			h.below[dir] = true
		} else if p != "" {
			h.at[p] = true
		}
	}
	return h
}

func (h hiddenPaths) none() bool { return len(h.at) == 0 && len(h.below) == 0 }

// has reports whether a clean absolute path is hidden.
func (h hiddenPaths) has(p string) bool {
	if h.at[p] {
		return true
	}
	for i := len(p) - 1; i > 0; i-- {
		if p[i] == '/' && (h.at[p[:i]] || h.below[p[:i]]) {
			return true
		}
	}
	return false
}

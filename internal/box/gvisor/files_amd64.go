package gvisor

import (
	"maps"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
)

// withArch adds the calls that only this architecture has.
func withArch(ops map[uintptr]fileOp) map[uintptr]fileOp {
	file, link := []pathArg{{dir: none, path: 0}}, []pathArg{{dir: none, path: 0, link: true}}
	entry := []pathArg{{dir: none, path: 0, entry: true}}
	maps.Copy(ops, map[uintptr]fileOp{
		unix.SYS_OPEN:    {"open", "", file, 1},
		unix.SYS_CREAT:   {"creat", wire.FileCreate, file, none},
		unix.SYS_UNLINK:  {"unlink", wire.FileRemove, entry, none},
		unix.SYS_RMDIR:   {"rmdir", wire.FileRemove, entry, none},
		unix.SYS_MKDIR:   {"mkdir", wire.FileCreate, entry, none},
		unix.SYS_MKNOD:   {"mknod", wire.FileCreate, entry, none},
		unix.SYS_SYMLINK: {"symlink", wire.FileCreate, []pathArg{{dir: none, path: 1, entry: true}}, none},
		unix.SYS_LINK: {"link", wire.FileCreate,
			[]pathArg{{dir: none, path: 0, link: true}, {dir: none, path: 1, entry: true}}, none},
		unix.SYS_RENAME: {"rename", wire.FileRename,
			[]pathArg{{dir: none, path: 0, entry: true}, {dir: none, path: 1, entry: true}}, none},
		unix.SYS_CHMOD:     {"chmod", wire.FileChange, file, none},
		unix.SYS_CHOWN:     {"chown", wire.FileChange, file, none},
		unix.SYS_LCHOWN:    {"lchown", wire.FileChange, link, none},
		unix.SYS_UTIME:     {"utime", wire.FileChange, file, none},
		unix.SYS_UTIMES:    {"utimes", wire.FileChange, file, none},
		unix.SYS_FUTIMESAT: {"futimesat", wire.FileChange, []pathArg{{dir: 0, path: 1}}, none},
	})
	return ops
}

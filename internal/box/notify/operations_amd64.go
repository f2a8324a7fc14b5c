//go:build linux

package notify

import (
	"maps"

	"golang.org/x/sys/unix"
)

var operations = func() map[uint32]operation {
	m := maps.Clone(operationsAt)
	m[unix.SYS_RENAME] = operation{rename: func(a [6]uint64) renameArgs {
		return renameArgs{from: place{fdCwd, a[0]}, to: place{fdCwd, a[1]}}
	}}
	m[unix.SYS_CHOWN] = operation{emulate: func(c caller, a [6]uint64) verdict {
		return chown(c, place{fdCwd, a[0]}, uint32(a[1]), uint32(a[2]), 0)
	}}
	m[unix.SYS_LCHOWN] = operation{emulate: func(c caller, a [6]uint64) verdict {
		return chown(c, place{fdCwd, a[0]}, uint32(a[1]), uint32(a[2]), unix.AT_SYMLINK_NOFOLLOW)
	}}
	m[unix.SYS_MKNOD] = operation{emulate: func(c caller, a [6]uint64) verdict {
		return mknod(c, place{fdCwd, a[0]}, uint32(a[1]), uint32(a[2]))
	}}
	return m
}()

//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Parts of the file handles of overlayfs (fs/overlayfs/overlayfs.h, struct ovl_fb): a version, a magic byte, the
// length, and flags.
const (
	atHandleFID      = 0x200 // AT_HANDLE_FID: an identifier that cannot be opened
	ovlFileidV0      = 0xfb
	ovlFileidV1      = 0xf8
	ovlFhMagic       = 0xfb
	ovlFhFlagUpper   = 1 << 2 // OVL_FH_FLAG_PATH_UPPER
	maxHandle        = 128    // MAX_HANDLE_SZ
	ovlV1MagicOffset = 3 + 1  // three bytes of padding, then the version
)

// pureUpper reports whether e, a directory of overlayfs, exists only in the upper layer, so that overlayfs can rename
// it (ovl_can_move). It returns false if that cannot be determined.
//
// The handle of name_to_handle_at(2) shows it: for an identifier (AT_HANDLE_FID, Linux 6.5; overlayfs since 6.6) the
// kernel encodes the upper directory if the directory has no lower one, and otherwise a lower one
// (ovl_check_encode_origin). If the kernel refuses the handle, a rename that must fail shows it: see triedToMove.
func pureUpper(e *end) bool {
	var h struct {
		bytes uint32
		kind  int32
		data  [maxHandle]byte
	}
	h.bytes = maxHandle
	var mount int32
	_, _, errno := unix.Syscall6(unix.SYS_NAME_TO_HANDLE_AT, uintptr(e.node), uintptr(ptr("\x00")),
		uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&mount)), unix.AT_EMPTY_PATH|atHandleFID, 0)
	if errno != 0 {
		return triedToMove(e)
	}
	at := 1
	if h.kind == ovlFileidV1 {
		at = ovlV1MagicOffset
	} else if h.kind != ovlFileidV0 {
		return triedToMove(e)
	}
	if int(h.bytes) < at+3 || h.data[at] != ovlFhMagic {
		return triedToMove(e)
	}
	return h.data[at+2]&ovlFhFlagUpper != 0
}

// triedToMove tries to rename e onto a directory that is not empty. overlayfs checks first whether e can be moved at
// all (EXDEV), so ENOTEMPTY means that it can. Neither error changes anything. The target directory is in the workshop,
// where Recover finds it after a kill. Only one try may run at a time.
func triedToMove(e *end) bool {
	root, _, err := mountRoot(e)
	if err != nil {
		return false
	}
	defer unix.Close(root)
	times := keepTimes(root)
	defer times()
	if unix.Mkdirat(root, journalName, 0o700) != nil {
		return false
	}
	defer func() { _ = unix.Unlinkat(root, journalName, unix.AT_REMOVEDIR) }()
	name := journalName + "/" + journalTry
	if unix.Mkdirat(root, name, 0o700) != nil {
		return false
	}
	defer func() { _ = unix.Unlinkat(root, name, unix.AT_REMOVEDIR) }()
	inner := name + "/x"
	if unix.Mkdirat(root, inner, 0o700) != nil {
		return false
	}
	defer func() { _ = unix.Unlinkat(root, inner, unix.AT_REMOVEDIR) }()
	err = unix.Renameat(e.parent, e.base, root, name)
	return errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST)
}

package layer

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// maxHeld is the depth down to which a recursion keeps each directory's descriptor. Below that it closes them on the
// way down and reopens them through "..", so that the number of descriptors is bounded at any depth.
const maxHeld = 200

// openFileAt is dirfd.OpenRegular. It returns Conflict for a file that another process holds a lease on (fcntl(2),
// F_SETLEASE).
func openFileAt(dir int, name string) (int, unix.Stat_t, error) {
	fd, st, err := dirfd.OpenRegular(dir, name)
	if errors.Is(err, unix.EAGAIN) {
		err = fault.New(fault.Conflict, "file %q is leased by another process", limit.Cut(name, limit.MessagePath)).
			Because(err).
			WithHint("stop the process that holds the lease; to find it: cat /proc/locks")
	}
	return fd, st, err
}

// hintReadable adds a hint to the error of a process that has no capabilities over the files of a sandbox, and may not
// read the one at p. That is so only in tier workspace, whose commands find the root in their working directory.
func hintReadable(err error, p string) error {
	if !errors.Is(err, unix.EACCES) || fault.HintOf(err) != "" {
		return err
	}
	return fault.New(fault.KindOf(err), "").Because(err).
		WithHint("make it readable: coppice exec NAME -- chmod u+rX %q", "."+limit.Cut(p, limit.MessagePath))
}

// isWhiteout reports whether an entry in overlay form is a whiteout.
func isWhiteout(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

func mtimeNs(st *unix.Stat_t) int64 { return st.Mtim.Sec*1e9 + st.Mtim.Nsec }
func ctimeNs(st *unix.Stat_t) int64 { return st.Ctim.Sec*1e9 + st.Ctim.Nsec }

package rootspec

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Files finds and reads regular files in the root of a sandbox, which decides where each name
// leads, and may change that at any time. So a file is checked through a descriptor that does
// not open it (O_PATH), and is then opened by that descriptor, not by its name. No FIFO, no
// device and no decoy is opened: the opening of a decoy would be recorded as the sandbox's.
type Files struct {
	Root    int      // the root, O_PATH
	Proc    int      // a procfs that shows this process, O_PATH
	Regions []Region // of the root
	// Decoys is the device of the file system that holds the decoys: see Sources.DecoyDevice. It identifies a
	// decoy even after a rename outside of the sandbox has moved it.
	Decoys uint64
}

// FoundFile is a regular file that Find has found. The descriptor is open with O_PATH.
type FoundFile struct {
	*os.File
	At string // its path in the root, without links

	proc int
	most int64
}

// Find finds the file of up to most bytes that an absolute name leads to; links are followed
// within the root. It returns nil if there is no such file that can be reached, or if it is a
// decoy. Any error is the host's, of kind fault.Unavailable. The caller closes the file.
func (f Files) Find(name string, most int64) (*FoundFile, error) {
	fd, err := OpenInRoot(f.Root, strings.TrimPrefix(name, "/"), unix.O_PATH)
	if fault.Is(err, fault.Unavailable) {
		return nil, err
	}
	if err != nil {
		return nil, nil //nolint:nilerr // about the name, which the sandbox chose
	}
	found := &FoundFile{File: os.NewFile(uintptr(fd), name), proc: f.Proc, most: most}
	if ok, err := f.check(found); err != nil || !ok {
		found.Close()
		return nil, err
	}
	return found, nil
}

// check reports whether a file that was found may be read, and sets its path.
func (f Files) check(found *FoundFile) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(found.Fd()), &st); err != nil {
		return false, fault.New(fault.Unavailable, "inspect %q", found.Name()).Because(err)
	}
	if !dirfd.IsRegular(&st) || st.Size > found.most || f.Decoys != 0 && st.Dev == f.Decoys {
		return false, nil
	}
	at, err := dirfd.Readlink(f.Proc, found.link())
	if errors.Is(err, unix.ENAMETOOLONG) {
		return false, nil // no system file is that deep
	}
	if err != nil {
		return false, fault.New(fault.Unavailable, "resolve %q", found.Name()).Because(err)
	}
	found.At = at
	return !RegionOf(f.Regions, at).Decoy, nil
}

// link is the name of the descriptor in the procfs.
func (f *FoundFile) link() string { return "self/fd/" + strconv.Itoa(int(f.Fd())) }

// ReadAll returns the content of the file, up to the size that Find was given; nil if the file
// may not be opened, or cannot be opened without waiting for another process.
func (f *FoundFile) ReadAll() ([]byte, error) {
	fd, err := dirfd.Open(f.proc, f.link(), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, unix.EAGAIN) {
		return nil, nil // a process has a lease on it
	}
	if err = ofHost(err); fault.Is(err, fault.Unavailable) {
		return nil, err
	}
	if err != nil {
		return nil, nil // about the file, which the sandbox chose
	}
	r := os.NewFile(uintptr(fd), f.Name())
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, f.most))
	if err != nil { // what was read before is not the file
		return nil, fault.Wrap(err, "read %q", f.Name())
	}
	return b, nil
}

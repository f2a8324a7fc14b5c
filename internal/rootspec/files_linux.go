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

// Files finds and reads regular files in the root of a sandbox, which decides what each name resolves to, and may
// change that at any time. So a file is checked through an O_PATH descriptor, which does not open the file, and is
// then opened by that descriptor, not by its name. No FIFO, no device and no decoy is opened: opening a decoy would
// be recorded as an action of the sandbox.
type Files struct {
	Root    int      // the root, O_PATH
	Proc    int      // a procfs that shows this process, O_PATH
	Regions []Region // of the root
	// Decoys is the device of the file system with the decoys: see Sources.DecoyDevice. It identifies a decoy even
	// after a rename outside of the sandbox has moved it.
	Decoys uint64
}

// FoundFile is a regular file that Find found. The descriptor is open with O_PATH.
type FoundFile struct {
	*os.File
	At string // its path in the root, without links

	proc int
	most int64
}

// Find finds the file that an absolute name resolves to; links are followed within the root. It returns nil if no
// such file can be reached, if it is larger than most bytes, or if it is a decoy. Any error is about the host, of
// kind fault.Unavailable. The caller closes the file.
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

// check reports whether a found file may be read, and sets its path.
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
		return false, nil // no system file has such a long path
	}
	if err != nil {
		return false, fault.New(fault.Unavailable, "resolve %q", found.Name()).Because(err)
	}
	found.At = at
	return !RegionOf(f.Regions, at).Decoy, nil
}

// link returns the name of the descriptor in the procfs.
func (f *FoundFile) link() string { return "self/fd/" + strconv.Itoa(int(f.Fd())) }

// ReadAll returns the content of the file, up to the maximum size given to Find; nil if the file must not be opened,
// or cannot be opened without waiting for another process.
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
	if err != nil { // a part is not the file
		return nil, fault.Wrap(err, "read %q", f.Name())
	}
	return b, nil
}

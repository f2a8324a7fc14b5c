package quota

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/thread"
)

// Project is the number of a project. 0 is the project of files that belong to none.
type Project uint32

// Coppice uses numbers from first on: administrators use small ones in /etc/projects. The next number after last is
// not valid.
const (
	first Project = 1 << 31
	last  Project = 1<<32 - 2
)

// Ours reports whether Claim may have created a project.
func (p Project) Ours() bool { return p >= first && p <= last }

// An empty file takes no blocks of a project, so files are limited as well: to as many as would fill the limit with
// one small block each.
const (
	bytesPerInode = 4096
	leastInodes   = 256 // a live root with many parts starts with several dozen
)

// Inodes returns the number of files that a limit in bytes allows.
func Inodes(limit int64) int64 {
	if limit <= 0 {
		return 0
	}
	return max(limit/bytesPerInode, leastInodes)
}

// Figures are the usage and limits of a project as recorded by the file system. A limit of 0 means no limit.
type Figures struct {
	Limit, Used       int64 // bytes
	InodeLimit, Inode int64 // files, directories and all other inodes
}

// Holds returns nil if the kernel reports that it enforces the limits of projects on the file system of dir,
// otherwise an Unsupported fault with the reason and a hint. TryProject tests it instead.
func Holds(dir string) error {
	f, err := state(dir)
	if err != nil {
		return err
	}
	if f.Counts && f.Holds {
		return nil
	}
	return Lack(f)
}

func state(dir string) (Facts, error) {
	f := Facts{Dir: dir, FS: fileSystem(dir)}
	f.Device, f.Mount = mountOf(dir)
	fd, err := openDir(dir)
	if err != nil {
		return f, fault.Wrap(err, "find quotas")
	}
	defer unix.Close(fd)
	s := statv{Version: 1}
	if err := quotactl(fd, getState, 0, unsafe.Pointer(&s)); err != nil {
		f.NoCall = errors.Is(quotactl(-1, getState, 0, unsafe.Pointer(&s)), unix.ENOSYS)
		return f, nil
	}
	f.Counts, f.Holds = s.Flags&counted != 0, s.Flags&enforced != 0
	return f, nil
}

// Of returns the project of a directory, and whether new files in it inherit it. On a file system without projects it
// returns 0.
func Of(dir string) (p Project, inherited bool, err error) {
	fd, err := openDir(dir)
	if err != nil {
		return 0, false, err
	}
	defer unix.Close(fd)
	var x fsxattr
	err = ioctl(fd, fsGetXattr, unsafe.Pointer(&x))
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read the project of %s: %w", dir, err)
	}
	return Project(x.Project), x.Flags&projInherit != 0, nil
}

// Put adds an open directory to the project, with everything that is created in it from now on. It must be open for
// reading.
func Put(fd int, p Project) error {
	var x fsxattr
	if err := ioctl(fd, fsGetXattr, unsafe.Pointer(&x)); err != nil {
		return fmt.Errorf("read the project: %w", err)
	}
	x.Project, x.Flags = uint32(p), x.Flags|projInherit
	if err := ioctl(fd, fsSetXattr, unsafe.Pointer(&x)); err != nil {
		return fmt.Errorf("set the project: %w", err)
	}
	return nil
}

// Read returns the figures of a project on the file system of dir.
func Read(dir string, p Project) (Figures, error) {
	fd, err := openDir(dir)
	if err != nil {
		return Figures{}, err
	}
	defer unix.Close(fd)
	return read(fd, p)
}

func read(fd int, p Project) (Figures, error) {
	var q dqblk
	err := quotactl(fd, getQuota, uint32(p), unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) {
		return Figures{}, nil // xfs has no record of the project
	}
	if err != nil {
		return Figures{}, fmt.Errorf("read the quota of project %d: %w", p, err)
	}
	return Figures{
		Limit: int64(q.HardBlocks) * 1024, Used: int64(q.Space), // no disk is that large
		InodeLimit: int64(q.HardInodes), Inode: int64(q.Inodes), // no file system has that many
	}, nil
}

// Limit sets the limit of a project on the file system of dir, in bytes, and with it that of its files (Inodes); 0
// removes both. It is rounded down to whole KiB, but not to 0. It reads the limit back, and returns an error if the
// kernel did not record it.
func Limit(dir string, p Project, bytes int64) error {
	fd, err := openDir(dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return limit(fd, p, bytes)
}

func limit(fd int, p Project, bytes int64) error {
	want := Figures{InodeLimit: Inodes(bytes)}
	if bytes > 0 {
		want.Limit = max(bytes/1024, 1) * 1024
	}
	same := func() error {
		got, err := read(fd, p)
		if err == nil && (got.Limit != want.Limit || got.InodeLimit != want.InodeLimit) {
			err = fmt.Errorf(
				"the quota of project %d is %d bytes and %d files, expected %d and %d", p, got.Limit, got.InodeLimit,
				want.Limit, want.InodeLimit)
		}
		return err
	}
	if same() == nil {
		return nil
	}
	q := dqblk{HardBlocks: uint64(want.Limit / 1024), HardInodes: uint64(want.InodeLimit), Valid: limitsOnly}
	if err := quotactl(fd, setQuota, uint32(p), unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("set the quota of project %d: %w", p, err)
	}
	return same()
}

// claiming serializes the choice of a number: until its limit is set, nothing shows that it is in use.
var claiming sync.Mutex

// tries is the number of attempts after which another cause must be assumed.
const tries = 32

// Claim makes dir, a directory without content that counts, the top of a new project with a limit in bytes. The
// number is one for which the file system has neither usage nor limit. A crash may leave an unused limit, but never a
// project without one.
func Claim(dir string, bytes int64) (Project, error) {
	claiming.Lock()
	defer claiming.Unlock()
	fd, err := openDir(dir)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	for range tries {
		var b [4]byte
		if _, err := rand.Read(b[:]); err != nil {
			return 0, err
		}
		p := Project(binary.NativeEndian.Uint32(b[:])) | first
		if !p.Ours() {
			continue
		}
		f, err := read(fd, p)
		if err != nil {
			return 0, err
		}
		if f != (Figures{}) {
			continue
		}
		if err := limit(fd, p, bytes); err != nil {
			return 0, err
		}
		if err := Put(fd, p); err != nil {
			return 0, errors.Join(err, limit(fd, p, 0))
		}
		return p, nil
	}
	return 0, fmt.Errorf("no free project found in %d tries", tries)
}

// Exempt reports whether this process is exempt from the limits of projects on the file system of dir: with
// CAP_SYS_RESOURCE, except on xfs, which exempts no process.
func Exempt(dir string) bool {
	return fileSystem(dir) != "xfs" && thread.HasCapability(unix.CAP_SYS_RESOURCE)
}

package quota

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// ioctls of btrfs (include/uapi/linux/btrfs.h).
const (
	iocSubvolume   = 0x5000940e // _IOW(0x94, 14, struct btrfs_ioctl_vol_args)
	iocInoLookup   = 0xd0009412 // _IOWR(0x94, 18, struct btrfs_ioctl_ino_lookup_args)
	iocFsInfo      = 0x8400941f // _IOR(0x94, 31, struct btrfs_ioctl_fs_info_args)
	iocQgroupLimit = 0x8030942b // _IOR(0x94, 43, struct btrfs_ioctl_qgroup_limit_args)
	firstFree      = 256        // BTRFS_FIRST_FREE_OBJECTID: the root directory of a subvolume
	limitMaxRefer  = 1          // BTRFS_QGROUP_LIMIT_MAX_RFER
)

type volArgs struct {
	_    int64
	Name [4088]byte
}

type inoLookup struct {
	Tree, Object uint64
	_            [4080]byte
}

type fsInfo struct {
	_    [16]byte
	FSID [16]byte
	_    [992]byte
}

type qgroupLimit struct {
	ID, Flags, MaxRefer, MaxExcl, RsvRefer, RsvExcl uint64
}

// Subvolume is the qgroup of one subvolume of btrfs. Its figures are those in /sys/fs/btrfs: they are correct as of
// the last commit, and never too low while a limit is checked.
type Subvolume struct {
	dir string // directory of all qgroups in sysfs
	id  uint64
}

// String returns the name of the qgroup, as in "0/257".
func (s Subvolume) String() string { return "0/" + strconv.FormatUint(s.id, 10) }

// OpenSubvolume finds the qgroup of the subvolume whose root is dir. If btrfs has none, or its figures are not
// correct, it returns a fault with a hint.
func OpenSubvolume(dir string) (Subvolume, error) {
	s := Subvolume{}
	fd, err := openDir(dir)
	if err != nil {
		return s, err
	}
	defer unix.Close(fd)
	var info fsInfo
	if err := ioctl(fd, iocFsInfo, unsafe.Pointer(&info)); err != nil {
		return s, fmt.Errorf("read the id of the btrfs: %w", err)
	}
	look := inoLookup{Object: firstFree}
	if err := ioctl(fd, iocInoLookup, unsafe.Pointer(&look)); err != nil {
		return s, fmt.Errorf("read the id of a subvolume: %w", err)
	}
	u := info.FSID
	s.dir = fmt.Sprintf("/sys/fs/btrfs/%x-%x-%x-%x-%x/qgroups", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	s.id = look.Tree
	switch state, err := s.state(); {
	case err != nil:
		return s, err
	case !state.on:
		return s, fault.New(fault.Unsupported, "cannot enforce a disk limit: quotas are disabled on the btrfs of %s", dir).
			WithHint("btrfs quota enable %s", dir)
	case state.wrong:
		return s, fault.New(fault.Unsupported,
			"cannot enforce a disk limit: the quotas of the btrfs of %s are being rescanned, or are inconsistent", dir).
			WithHint("btrfs quota rescan -w %s", dir)
	}
	return s, nil
}

type qgroupState struct{ on, wrong bool }

func (s Subvolume) state() (q qgroupState, err error) {
	on, err := s.number("enabled")
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Lstat(filepath.Dir(s.dir)); err != nil {
			return q, fault.New(fault.Unsupported, "cannot check a disk limit: %s not found", filepath.Dir(s.dir)).
				WithHint("mount -t sysfs sysfs /sys, on Linux 5.9 or later")
		}
		return q, nil
	}
	if err != nil {
		return q, err
	}
	wrong, err := s.number("inconsistent")
	return qgroupState{on: on != 0, wrong: wrong != 0}, err
}

// Used returns the number of bytes that the subvolume refers to.
func (s Subvolume) Used() (int64, error) { return s.number(s.entry("referenced")) }

// Limit sets the number of bytes that the subvolume whose root is dir may refer to. It reads the limit back, and
// returns an error if the kernel did not record it.
func (s Subvolume) Limit(dir string, bytes int64) error {
	same := func() error {
		got, err := s.number(s.entry("max_referenced"))
		if err == nil && got != bytes {
			err = fmt.Errorf("the limit of qgroup %s is %d bytes, expected %d", s, got, bytes)
		}
		return err
	}
	if same() == nil {
		return nil
	}
	fd, err := openDir(dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	l := qgroupLimit{ID: s.id, Flags: limitMaxRefer, MaxRefer: uint64(bytes)} // positive
	if err := ioctl(fd, iocQgroupLimit, unsafe.Pointer(&l)); err != nil {
		return fmt.Errorf("set the limit of qgroup %s: %w", s, err)
	}
	return same()
}

func (s Subvolume) entry(name string) string {
	return filepath.Join("0_"+strconv.FormatUint(s.id, 10), name)
}

// number reads a file of sysfs; "none" means 0.
func (s Subvolume) number(name string) (int64, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		return 0, err
	}
	text := string(bytes.TrimSpace(b))
	if text == "none" {
		return 0, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

// TrySubvolume tests whether the limit of a subvolume in dir stops a command. If not, it returns a fault that names
// what is missing, with a hint. It leaves nothing behind. The caller must be real root.
func TrySubvolume(dir string) error {
	err := trySubvolume(dir)
	if err == nil || fault.Is(err, fault.Unsupported) {
		return err
	}
	return fault.New(fault.Unsupported, "cannot enforce a disk limit: a test in %s failed", dir).Because(err).
		WithHint(elsewhere)
}

func trySubvolume(dir string) (err error) {
	tmp, err := os.MkdirTemp(dir, ".coppice-probe-")
	if err != nil {
		return err
	}
	// rmdir(2) removes an empty subvolume.
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	sub := filepath.Join(tmp, "sub")
	if err := makeSubvolume(tmp, filepath.Base(sub)); err != nil {
		return err
	}
	s, err := OpenSubvolume(sub)
	if f := (*fault.Error)(nil); errors.As(err, &f) {
		return forDir(f, sub, dir)
	}
	if err != nil {
		return err
	}
	used, err := s.Used()
	if err == nil {
		err = s.Limit(sub, used+tryLimit)
	}
	if err == nil {
		err = stopped(filepath.Join(sub, "f"))
	}
	return err
}

// forDir replaces the path of a temporary directory in an error with that of the directory it was created in.
func forDir(f *fault.Error, tmp, dir string) error {
	return fault.New(f.Kind, "%s", strings.ReplaceAll(f.Message, tmp, dir)).
		WithHint("%s", strings.ReplaceAll(f.Hint, tmp, dir)).Because(f.Err)
}

func makeSubvolume(dir, name string) error {
	fd, err := openDir(dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var a volArgs
	copy(a.Name[:len(a.Name)-1], name)
	if err := ioctl(fd, iocSubvolume, unsafe.Pointer(&a)); err != nil {
		return fmt.Errorf("create a subvolume in %s: %w", dir, err)
	}
	return nil
}

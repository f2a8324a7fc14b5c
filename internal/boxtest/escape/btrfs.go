//go:build linux && (amd64 || arm64)

package escape

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// btrfsVolume is struct btrfs_ioctl_vol_args, and btrfsVolume2 is its second version, of the same size (linux/btrfs.h).
type btrfsVolume struct {
	fd   int64
	name [4088]byte
}

type btrfsVolume2 struct {
	fd    int64
	_     uint64 // a transaction
	flags uint64
	_     [4]uint64
	name  [4040]byte
}

// btrfsReceived is struct btrfs_ioctl_received_subvol_args.
type btrfsReceived struct {
	uuid [16]byte
	_    [23]uint64 // transactions, times, flags
}

// The sizes must be those in the requests, or this does not compile.
var (
	_ = [1]byte{}[unsafe.Sizeof(btrfsVolume{})-4096]
	_ = [1]byte{}[unsafe.Sizeof(btrfsVolume2{})-4096]
	_ = [1]byte{}[unsafe.Sizeof(btrfsReceived{})-200]
)

// request is the number of an ioctl.
type request uintptr

func (r request) String() string { return fmt.Sprintf("%#x", uintptr(r)) }

// Requests of btrfs that change subvolumes, or wait for the disk.
const (
	btrfsSnapCreate    = 0x50009401
	btrfsSync          = 0x9408
	btrfsSubvolCreate  = 0x5000940e
	btrfsSnapDestroy   = 0x5000940f
	btrfsSnapCreate2   = 0x50009417
	btrfsSubvolCreate2 = 0x50009418
	btrfsStartSync     = 0x80089418
	btrfsSetFlags      = 0x4008941a
	btrfsSetReceived   = 0xc0c89425
	btrfsQuota         = 0xc0109428
	btrfsSnapDestroy2  = 0x5000943f
)

// btrfsGiven are the requests of btrfs's type that other file systems may support too, or that only read. A sandbox may
// use them (seccomp, btrfsAllowed).
var btrfsGiven = map[request]bool{0x40049409: true, 0x4020940d: true, 0xc0189436: true, 0x81009431: true,
	0x8400941f: true, 0x80089424: true}

// btrfsAttacks are attempts on the file system that contains a sandbox's files. Any result other than ENOTTY, which
// other file systems return, shows that a request has reached a btrfs.
var btrfsAttacks = []Attack{
	{Name: "btrfs",
		None: "the answer is that of another file system: programs that cannot make a subvolume make a directory",
		What: "make, snapshot, change and delete subvolumes, including read-only ones, which cannot be removed; flush the " +
			"disk's caches; try every request that btrfs may have",
		Run: func(f Facts) error {
			err := each([]string{"/", "/tmp", "/etc", "/usr", "/srv", "/work"}, func(dir string) error {
				return inside(dir, func(fd uintptr) error { return any1(btrfsWays(fd)) })
			})
			if err == nil {
				return nil
			}
			return inside("/", anyBtrfs)
		}},
}

// inside calls try with a descriptor of a directory.
func inside(dir string, try func(fd uintptr) error) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return try(uintptr(fd))
}

// reachedBtrfs returns nil if a btrfs answered the request.
func reachedBtrfs(fd uintptr, req request, arg uintptr) error {
	if err := sys(unix.SYS_IOCTL, fd, uintptr(req), arg); errors.Is(err, unix.ENOTTY) {
		return err
	}
	return nil
}

// btrfsWays returns the ways to create or change a subvolume, of which fd is one, and to keep the disk busy.
func btrfsWays(fd uintptr) map[string]func() error {
	ways := map[string]func() error{}
	for name, req := range map[string]request{"subvol-create": btrfsSubvolCreate, "snap-create": btrfsSnapCreate,
		"snap-destroy": btrfsSnapDestroy} {
		ways[name] = func() error {
			v := btrfsVolume{fd: int64(fd)}
			copy(v.name[:], "escape-"+name)
			return reachedBtrfs(fd, req, ptr(&v))
		}
	}
	const readOnly = 1 << 1 // BTRFS_SUBVOL_RDONLY
	for name, req := range map[string]request{"subvol-create-v2": btrfsSubvolCreate2, "snap-create-v2": btrfsSnapCreate2,
		"snap-destroy-v2": btrfsSnapDestroy2} {
		ways[name] = func() error {
			v := btrfsVolume2{fd: int64(fd)}
			if req == btrfsSnapCreate2 {
				v.flags = readOnly
			}
			copy(v.name[:], "escape-"+name)
			return reachedBtrfs(fd, req, ptr(&v))
		}
	}
	for name, req := range map[string]request{"set-flags": btrfsSetFlags, "set-flags-high": 0xdead<<32 | btrfsSetFlags} {
		ways[name] = func() error {
			var writable uint64
			return reachedBtrfs(fd, req, ptr(&writable))
		}
	}
	ways["set-received"] = func() error {
		r := btrfsReceived{uuid: [16]byte{1}}
		return reachedBtrfs(fd, btrfsSetReceived, ptr(&r))
	}
	ways["sync"] = func() error { return reachedBtrfs(fd, btrfsSync, 0) }
	ways["start-sync"] = func() error {
		var transaction uint64
		return reachedBtrfs(fd, btrfsStartSync, ptr(&transaction))
	}
	ways["quota"] = func() error {
		var none [2]uint64 // an unknown command
		return reachedBtrfs(fd, btrfsQuota, ptr(&none))
	}
	return ways
}

// anyBtrfs tries every number with every direction and the usual sizes, on unmapped memory. A btrfs answers these, even
// if with EPERM or EFAULT.
func anyBtrfs(fd uintptr) error {
	var all []request
	for nr := range uintptr(256) {
		for direction := range uintptr(4) {
			for _, size := range []uintptr{0, 8, 4096} {
				if req := request(direction<<30 | size<<16 | 0x9400 | nr); !btrfsGiven[req] {
					all = append(all, req)
				}
			}
		}
	}
	return each(all, func(req request) error { return reachedBtrfs(fd, req, 0) })
}

// Package rootfs presents a stack of layers as the live root of a sandbox, in a generation directory that belongs to
// a driver: overlay mounts the stack and keeps changes in upper directories, copy and btrfs create a plain tree. It
// computes values (rootspec.Spec) and prepares directories; it mounts nothing. It imports rootspec, quota, removal,
// mounttable, dirfd, limit, fault and undo; daemon passes it to the engine.
package rootfs

import (
	"context"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Live is one generation of a sandbox's live root.
type Live struct {
	Dir   string         // generation directory (host path); belongs to the driver
	Stack rootspec.Stack // the layers below it
	// Disk limits the size of the live root, in bytes; 0 means no limit. With a limit, the parent of Dir must
	// belong to the generations of a single sandbox.
	Disk int64
}

// Driver creates and removes live roots. All methods are safe for concurrent use, except on the same generation.
type Driver interface {
	// Name returns overlay, copy or btrfs.
	Name() string
	// Present prepares the generation directory as the live root of the stack, and returns how to mount it. It is
	// idempotent: it keeps the changes of a generation that was presented before. The parent of the directory must
	// exist. If the first Present fails, it removes the directory. If it succeeds, a limit is enforced.
	Present(ctx context.Context, live Live) (rootspec.Spec, error)
	// Parts returns where the changes of a presented generation appear.
	Parts(live Live) ([]rootspec.Part, error)
	// Adoptable reports whether the parts may become a layer as they are.
	Adoptable() bool
	// Plain reports whether parts are plain trees, which require a full index before the first change.
	Plain() bool
	// Remove deletes a generation directory; a missing one is not an error.
	Remove(ctx context.Context, dir string) error
}

// Deps are the dependencies of drivers.
type Deps struct {
	// Home is the store (COPPICE_HOME); it is hidden wherever a root shows it.
	Home string
	// Root reports that the daemon is real root, not uid 0 of a user namespace.
	Root bool
	// Materialise writes the tree of stack into the existing empty directory dst, with all metadata. Drivers copy and
	// btrfs need it.
	Materialise func(ctx context.Context, stack rootspec.Stack, dst string) error
	// Host returns the state of the host; if nil, the real one is read.
	Host func() (Host, error)
}

// LeftOut is a path of the host that a live root omits.
type LeftOut struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Limiter is implemented by drivers that can limit a live root to Live.Disk. If the store does not support limits,
// CanLimit fails, and Present refuses a limit.
type Limiter interface {
	// CanLimit tests whether limits work in the store. If not, the error is of kind Unsupported, names what is
	// missing, and has a hint.
	CanLimit() error
	// Limit returns how the limit of a presented generation is enforced.
	Limit(live Live) (Limit, error)
	// Used returns the number of bytes that count towards the limit. It may wait for a flush.
	Used(live Live) (int64, error)
	// Unlimit releases the file system's records of the limits of all generations below dir, which are about
	// to be removed. A missing dir is not an error.
	Unlimit(dir string) error
}

// Limit describes how a disk limit is enforced.
type Limit struct {
	By string // for people: "project quota 2147483650"
	// Project is the project that copies of the live root are charged to; 0 if they are not charged.
	Project uint32
}

// Reporter is implemented by drivers that support the host as the base, and report which host paths a presented
// generation omits.
type Reporter interface {
	LeftOut(live Live) []LeftOut
}

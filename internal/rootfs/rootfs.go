// Package rootfs presents a stack of layers as the live root of a sandbox, in a
// generation directory that belongs to a driver: overlay mounts the stack and
// keeps what changes in upper directories, copy and btrfs make a plain tree of
// it. It computes values (rootspec.Spec) and prepares directories; it mounts
// nothing. It imports rootspec, quota, fault and undo; daemon wires it to the engine.
package rootfs

import (
	"context"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Live is one generation of a sandbox's live root.
type Live struct {
	Dir   string         // the generation directory (host path); the driver's own
	Stack rootspec.Stack // what it stands on
	// Disk is the limit of what the live root takes, in bytes; 0 is none. The
	// parent of Dir then belongs to the generations of one sandbox alone.
	Disk int64
}

// Driver versions a root file system. All methods may be called from any
// goroutine, but one generation by one at a time.
type Driver interface {
	// Name is overlay, copy or btrfs.
	Name() string
	// Present makes the generation directory ready as live root of the stack
	// and says how to mount it. It is idempotent: what a generation that was
	// presented before holds is kept. The parent of the directory must exist;
	// when a first Present fails, the directory is gone again. When it returns,
	// a limit is in force, or there is an error.
	Present(ctx context.Context, live Live) (rootspec.Spec, error)
	// Parts says where the changes of a presented generation appear.
	Parts(live Live) ([]rootspec.Part, error)
	// Adoptable reports whether the parts may become a layer as they are.
	Adoptable() bool
	// Plain reports whether parts are plain trees, of which a full index is
	// needed before the first change.
	Plain() bool
	// Remove deletes a generation directory; a missing one is no error.
	Remove(ctx context.Context, dir string) error
}

// Deps is what drivers are made of.
type Deps struct {
	// Home is the store (COPPICE_HOME); it is hidden wherever a root shows it.
	Home string
	// Root says that the daemon is real root, not uid 0 of a user namespace.
	Root bool
	// Materialise writes the tree that stack shows into the existing empty
	// directory dst, with everything that belongs to a file. Drivers copy and
	// btrfs need it.
	Materialise func(ctx context.Context, stack rootspec.Stack, dst string) error
	// Host tells about the host; nil reads the real one.
	Host func() (Host, error)
}

// LeftOut is a place of the host that a live root does not show.
type LeftOut struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Limiter is the power to hold a live root to Live.Disk. Where it cannot be had,
// CanLimit says so, and Present refuses a limit.
type Limiter interface {
	// CanLimit finds out by trying whether limits hold in the store. If not, the
	// error is an Unsupported fault that says what is missing, with a hint.
	CanLimit() error
	// Limit says how the limit of a presented generation is enforced.
	Limit(live Live) (Limit, error)
	// Used is how many bytes count towards the limit. It may wait for a flush.
	Used(live Live) (int64, error)
	// Unlimit gives back what the file system keeps about the limits of all
	// generations below dir, which are about to be removed. A missing dir is no
	// error.
	Unlimit(dir string) error
}

// Limit is how a disk limit is enforced.
type Limit struct {
	By string // for people: "project quota 2147483650"
	// Project is what copies of the live root are charged to; 0: to nobody.
	Project uint32
}

// Reporter is the power to say what a presented generation leaves out; drivers
// that can stand on the host have it.
type Reporter interface {
	LeftOut(live Live) []LeftOut
}

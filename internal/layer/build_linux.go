package layer

import (
	"context"
	"os"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Builder is a layer that a function fills. Paths are relative to the root, with slashes.
// It may be used by several goroutines at once, and not after the function has returned.
type Builder struct{}

// DirMeta is what a directory has besides what is in it.
type DirMeta struct {
	Mode     uint32 // permission bits, with setuid, setgid and sticky
	UID, GID uint32 // as the store's process sees them
	Mtime    time.Time
	// Skeleton: the directory only leads to what the layer holds. Its mode, owner and time
	// are what a mount shows, and what a view shows where no lower layer has it.
	Skeleton bool
}

// Root is the root of the layer, empty at first. What is made below it belongs to the
// store's process. The layer's own root counts as a skeleton unless Dir says otherwise.
func (b *Builder) Root() *os.Root { return nil }

// Dir makes a directory, unless it is there, and gives it its metadata when the function
// has returned without an error. The directory above must be there.
func (b *Builder) Dir(path string, m DirMeta) error { return nil }

// Whiteout says that nothing is at path, whatever lies below. The directory above it must
// be there, and the path not.
func (b *Builder) Whiteout(path string) error { return nil }

// Opaque says that nothing that lies below shows through the directory at path.
func (b *Builder) Opaque(path string) error { return nil }

// Build makes layer id of what fill writes. A layer that fill fails on, or that exists
// (Exists), is not made, and nothing is left of it; what a killed process left is
// swept when the store is opened. The layer is not flushed before Seal.
func (s *Store) Build(ctx context.Context, id timeline.LayerID, fill func(b *Builder) error) error {
	return fault.New(fault.Internal, "not written")
}

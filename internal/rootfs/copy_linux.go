package rootfs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/quota"
	"github.com/coppice-dev/coppice/internal/removal"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/undo"
)

// plain is the driver copy: a generation is a directory "root" with the whole tree. It is built as "root.new",
// flushed and renamed, so that an existing tree is complete; an incomplete one from before a crash is deleted. With
// volumes it is the driver btrfs.
type plain struct {
	deps Deps
	vol  *volumes // nil: ordinary directories
}

func (c *plain) Name() string {
	if c.vol != nil {
		return "btrfs"
	}
	return "copy"
}

func (c *plain) Adoptable() bool { return false }
func (c *plain) Plain() bool     { return true }

// Present implements Driver. It refuses the host as the base, since it would have to copy all of it.
func (c *plain) Present(ctx context.Context, live Live) (rootspec.Spec, error) {
	if live.Stack.Host {
		return rootspec.Spec{},
			fault.New(fault.Unsupported, "cannot use driver %s on the host itself: it would copy all of it",
				c.Name()).
				WithHint("copy the system directories once: coppice create --from host-copy --driver %s",
					c.Name())
	}
	if live.Disk > 0 && c.vol == nil {
		return rootspec.Spec{}, quota.NoDriver(c.Name())
	}
	root := filepath.Join(live.Dir, "root")
	spec := rootspec.Spec{Bind: root}
	if fi, err := os.Lstat(root); err == nil && fi.IsDir() {
		return spec, c.hold(live, root, false)
	}
	if c.vol != nil {
		if err := c.vol.supported(); err != nil {
			return rootspec.Spec{}, err
		}
	}
	if err := os.Mkdir(live.Dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return rootspec.Spec{}, fault.Wrap(err, "prepare the generation directory")
	}
	if err := c.build(ctx, live, root); err != nil {
		err = errors.Join(err, removal.Tree(context.WithoutCancel(ctx), live.Dir))
		return rootspec.Spec{}, fault.Wrap(err, "prepare the live root")
	}
	return spec, nil
}

func (c *plain) build(ctx context.Context, live Live, root string) (err error) {
	tmp := root + ".new"
	if err := removal.Tree(ctx, tmp); err != nil {
		return err
	}
	var u undo.Stack
	defer u.Run(&err)
	u.Push(func() error { return removal.Tree(context.WithoutCancel(ctx), tmp) })
	if c.vol != nil {
		err = c.vol.make(ctx, live.Stack, tmp, c.fill)
	} else if err = os.Mkdir(tmp, 0o700); err == nil {
		err = c.fill(ctx, live.Stack, tmp)
	}
	if err == nil {
		err = c.hold(live, tmp, true)
	}
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, root); err != nil {
		return err
	}
	u.Release()
	return nil
}

// fill writes the tree of the stack into the empty directory dst and flushes it: a generation survives a power
// failure, and a partial tree must not be taken for changes of the sandbox.
func (c *plain) fill(ctx context.Context, stack rootspec.Stack, dst string) error {
	if c.deps.Materialise == nil {
		return fault.New(fault.Internal, "driver %s has no copy function", c.Name())
	}
	if err := c.deps.Materialise(ctx, stack, dst); err != nil {
		return err
	}
	if c.vol != nil {
		return nil // a snapshot follows, which makes the kernel flush
	}
	fd, err := unix.Open(dst, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) {
		return nil // outside a user namespace, a root that its owner may not read
	}
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(fd), unix.Close(fd))
}

// Parts implements Driver.
func (c *plain) Parts(live Live) ([]rootspec.Part, error) {
	root := filepath.Join(live.Dir, "root")
	if _, err := os.Lstat(root); err != nil {
		return nil, fault.Wrap(err, "parts of the live root")
	}
	return []rootspec.Part{{Dir: root, Path: "/"}}, nil
}

// Remove implements Driver.
func (c *plain) Remove(ctx context.Context, dir string) error {
	return removal.Tree(ctx, dir)
}

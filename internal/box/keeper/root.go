//go:build linux && (amd64 || arm64)

package keeper

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// mountRoot mounts the root, holds its mounts, restricts it to what the policy allows and starts to watch its
// honeytokens.
func (b *building) mountRoot(context.Context) error {
	if b.root == "" {
		return nil
	}
	k := b.k
	opts := rootspec.Options{Keep: &b.mounts}
	if b.facts.Shift != 0 {
		ns, err := os.Open("/proc/" + strconv.Itoa(k.init.Pid) + "/ns/user")
		if err != nil {
			return fault.Wrap(err, "open init's user namespace")
		}
		b.onReturn(func() { ns.Close() })
		opts.IDMapFD = int(ns.Fd())
	}
	access := b.config.Access
	sources, err := access.Sources()
	if err != nil {
		return err
	}
	b.onReturn(sources.Close)
	b.sources = sources
	b.config.Spec.Points = append(sources.Points(), b.config.Spec.Bare(access)...)
	b.undos[undoRoot] = func() { _ = unix.Unmount(b.root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) }
	if err := mountWithPoints(b.config, b.root, opts); err != nil {
		return err
	}
	if err := b.holdRoot(); err != nil {
		return err
	}
	if b.facts.Shift != 0 {
		opts.Zero = int(b.facts.Shift)
	}
	if err := rootspec.Restrict(b.root, access, sources, opts); err != nil {
		return err
	}
	b.undos[undoDecoys] = func() {
		k.decoys.close()
		k.decoys = nil
	}
	return k.watchDecoys(sources.Decoys())
}

// holdRoot gives the keeper its own mount of the root, which exists until the keeper exits.
//
// overlayfs flushes the whole file system below it when its last mount is removed (ovl_sync_fs, fs/overlayfs/super.c).
// With a mount in the keeper that happens during the keeper's exit, and a caller that stops the box need not wait for
// it. Parts that are read-only inside are not read-only here: the sandbox's owner owns its history.
func (b *building) holdRoot() error {
	hold, err := copyMounts(b.root)
	if err != nil {
		return fault.Wrap(err, "pin the root")
	}
	b.k.hold = os.NewFile(uintptr(hold), b.root)
	b.undos[undoHold] = func() {
		b.k.hold.Close()
		b.k.hold = nil
	}
	return nil
}

// readRoot copies the root's mounts for init, and reads the users and groups of the root.
func (b *building) readRoot(ctx context.Context) error {
	if b.root == "" {
		return nil
	}
	tree, err := copyMounts(b.root)
	if err != nil {
		return fault.Wrap(err, "copy the mounts of the root")
	}
	b.closeFD(tree)
	b.fds = append(b.fds, tree)
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fault.Wrap(err, "open /proc")
	}
	b.closeFD(proc)
	decoys, err := b.sources.DecoyDevice()
	if err != nil {
		return err
	}
	b.files = rootspec.Files{Root: tree, Proc: proc, Regions: b.config.Access.Regions(), Decoys: decoys}
	if b.facts.Passwd, err = readFile(ctx, b.files, "/etc/passwd"); err != nil {
		return err
	}
	if b.facts.Group, err = readFile(ctx, b.files, "/etc/group"); err != nil {
		return err
	}
	b.k.owners = protocol.Owners{}
	if b.facts.Shift != 0 {
		b.k.owners = protocol.Owners{Shift: b.facts.Shift, Size: plan.ShiftSize}
	}
	return nil
}

// copyMounts returns a detached copy of the mounts at a path and below it.
func copyMounts(at string) (fd int, err error) {
	return unix.OpenTree(unix.AT_FDCWD, at, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
}

// mountWithPoints mounts the root. If its overlay lacks mount points that init needs, a directory that contains them
// becomes its lowest layer, so that they are not recorded in the history.
func mountWithPoints(c plan.Config, root string, opts rootspec.Options) error {
	if err := rootspec.Mount(c.Spec, root, opts); err != nil {
		return err
	}
	var missing []string
	for _, p := range rootspec.Reserved {
		if p == "/tmp" && c.KeepTmp {
			continue
		}
		if _, err := os.Lstat(root + p); errors.Is(err, os.ErrNotExist) {
			missing = append(missing, p)
		}
	}
	overlays := c.Spec.Overlays
	if len(missing) == 0 || len(overlays) == 0 || overlays[0].Target != "/" || overlays[0].Wrap {
		return nil
	}
	if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
		return fault.Wrap(err, "mount the root again")
	}
	points := filepath.Join(c.RunDir, "points")
	for _, p := range missing {
		if err := os.MkdirAll(points+p, 0o755); err != nil {
			return fault.Wrap(err, "create mount point %s", p)
		}
	}
	if err := os.Chmod(points, 0o755); err != nil {
		return fault.Wrap(err, "create the mount points")
	}
	c.Spec.Overlays = append([]rootspec.Overlay(nil), c.Spec.Overlays...)
	o := &c.Spec.Overlays[0]
	o.Lowers = append(append([]string(nil), o.Lowers...), points)
	return rootspec.Mount(c.Spec, root, opts)
}

// mostIDs is the largest size of the sandbox's /etc/passwd and /etc/group that is read.
const mostIDs = 4 << 20

// readFile reads a regular file of the sandbox. It returns nil if there is none that may be read.
func readFile(ctx context.Context, files rootspec.Files, name string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f, err := files.Find(name, mostIDs)
	if f == nil {
		return nil, err
	}
	defer f.Close()
	return f.ReadAll()
}

package layer

import (
	"cmp"
	"context"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
)

// sameAsCopy compares an entry of a live part with its copy in a layer.
func sameAsCopy(
	ctx context.Context, tree, partPath string, dirs []string, dir int, name string, plain bool,
) (bool, error) {
	root, err := dirfd.OpenDir(unix.AT_FDCWD, tree)
	if err != nil {
		return false, err
	}
	defer unix.Close(root)
	rel := strings.Join(append(strings.Split(strings.Trim(partPath, "/"), "/"), dirs...), "/")
	od, err := dirfd.OpenLong(root, cmp.Or(strings.Trim(rel, "/"), "."), dirfd.DirFlags, dirfd.Beneath)
	if err != nil {
		return false, err
	}
	defer unix.Close(od)
	return sameEntry(ctx, dir, name, plain, od, name, false, true)
}

// sameAsView compares an entry of a live part with the entry of a snapshot at p.
func sameAsView(ctx context.Context, v *View, p string, dir int, name string, plain bool) (same bool, err error) {
	err = v.at(p, func(_ *mdir, f *found) error {
		if dirfd.IsDir(&f.st) {
			return nil
		}
		same, err = sameEntry(ctx, dir, name, plain, f.dirfd(), f.name, f.src().plain, true)
		return err
	})
	return same, err
}

// sameEntry compares two entries that are not directories in everything that a snapshot stores except their links. If
// times is false, their times do not count either.
func sameEntry(
	ctx context.Context, ad int, an string, aplain bool, bd int, bn string, bplain, times bool,
) (bool, error) {
	a, err := dirfd.Lstat(ad, an)
	if err != nil {
		return false, err
	}
	b, err := dirfd.Lstat(bd, bn)
	if err != nil {
		return false, err
	}
	if a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || times && mtimeNs(&a) != mtimeNs(&b) ||
		a.Rdev != b.Rdev || a.Size != b.Size {
		return false, nil
	}
	if dirfd.IsLink(&a) {
		ta, err := dirfd.Readlink(ad, an)
		if err != nil {
			return false, err
		}
		tb, err := dirfd.Readlink(bd, bn)
		return ta == tb, err
	}
	if !dirfd.IsRegular(&a) {
		return true, nil
	}
	fa, a, err := openFileAt(ad, an)
	if err != nil {
		return false, err
	}
	defer unix.Close(fa)
	fb, b, err := openFileAt(bd, bn)
	if err != nil {
		return false, err
	}
	defer unix.Close(fb)
	xa, err := readAttrs(xattrSource{fd: fa}, aplain)
	if err != nil {
		return false, err
	}
	xb, err := readAttrs(xattrSource{fd: fb}, bplain)
	if err != nil || xa.cut || xb.cut || !sameAttrs(&xa, &xb) {
		return false, err
	}
	return sameContent(ctx, fa, fb, a.Size)
}

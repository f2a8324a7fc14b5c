package layer

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"
)

// sameAsCopy compares an entry of a live part with its copy in a layer.
func sameAsCopy(ctx context.Context, tree, partPath string, dirs []string, dir int, name string, plain bool) (bool, error) {
	root, err := openDirAt(unix.AT_FDCWD, tree)
	if err != nil {
		return false, err
	}
	defer unix.Close(root)
	rel := strings.Join(append(strings.Split(strings.Trim(partPath, "/"), "/"), dirs...), "/")
	rel = strings.Trim(rel, "/")
	od := root
	if rel != "" {
		if od, err = openBeneath(root, rel, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
			return false, err
		}
		defer unix.Close(od)
	}
	return sameEntry(ctx, dir, name, plain, od, name, false)
}

// sameAsView compares an entry of a live part with what a snapshot has at p.
func sameAsView(ctx context.Context, v *View, p string, dir int, name string, plain bool) (same bool, err error) {
	err = v.at(p, func(_ *mdir, f *found) error {
		if isDir(&f.st) {
			return nil
		}
		same, err = sameEntry(ctx, dir, name, plain, f.dirfd(), f.name, f.src().plain)
		return err
	})
	return same, err
}

// sameEntry compares two entries that are no directories in everything that a
// snapshot keeps but their links.
func sameEntry(ctx context.Context, ad int, an string, aplain bool, bd int, bn string, bplain bool) (bool, error) {
	var a, b unix.Stat_t
	if err := lstatAt(ad, an, &a); err != nil {
		return false, err
	}
	if err := lstatAt(bd, bn, &b); err != nil {
		return false, err
	}
	if a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || mtimeNs(&a) != mtimeNs(&b) || a.Rdev != b.Rdev || a.Size != b.Size {
		return false, nil
	}
	if a.Mode&unix.S_IFMT == unix.S_IFLNK {
		ta, err := readLinkAt(ad, an)
		if err != nil {
			return false, err
		}
		tb, err := readLinkAt(bd, bn)
		return ta == tb, err
	}
	if !isReg(&a) {
		return true, nil
	}
	fa, err := openFileAt(ad, an, &a)
	if err != nil {
		return false, err
	}
	defer unix.Close(fa)
	fb, err := openFileAt(bd, bn, &b)
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

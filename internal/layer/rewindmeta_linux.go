package layer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// node is an entry of a live root: the open file or directory fd or, if name is set, that entry of the directory fd,
// which is not followed.
type node struct {
	fd   int
	name string
}

func (n node) stat(st *unix.Stat_t) error {
	if n.name == "" {
		return unix.Fstat(n.fd, st)
	}
	var err error
	*st, err = dirfd.Lstat(n.fd, n.name)
	return err
}

// attrs reads the attributes under the names that they have in layers.
func (n node) attrs() (attrs, error) {
	if n.name == "" {
		return readAttrs(xattrSource{fd: n.fd}, true)
	}
	return readAttrs(xattrAt(n.fd, n.name), true)
}

// lacking returns the attributes of a that b lacks or has with another value.
func lacking(a, b *attrs) (out []xattr) {
	for _, x := range a.list {
		if !slices.ContainsFunc(b.list, func(y xattr) bool { return x.Key == y.Key && bytes.Equal(x.Value, y.Value) }) {
			out = append(out, x)
		}
	}
	return out
}

// inLiveRoot returns the attributes of a snapshot as programs in the live root see them.
func (r *rewinder) inLiveRoot(a *attrs) *attrs {
	out := &attrs{}
	for _, x := range a.list {
		switch {
		case isMark(x), strings.HasPrefix(x.Key, "security.selinux"):
			continue // marks of Coppice, and labels of the host's policy
		case strings.HasPrefix(x.Key, "system.posix_acl_"):
			x.Value = r.Owners.acl(x.Value)
		}
		out.list = append(out.list, x)
	}
	return out
}

// acl returns an access control list as it appears in the live root. Its format, from linux/posix_acl_xattr.h: a
// version of 4 bytes, and entries of tag, permission and id.
func (o Owners) acl(v []byte) []byte {
	const user, group = 0x02, 0x08
	if o.Size == 0 {
		return v
	}
	v = slices.Clone(v)
	for at := 4; at+8 <= len(v); at += 8 {
		if tag := binary.LittleEndian.Uint16(v[at:]); tag == user || tag == group {
			binary.LittleEndian.PutUint32(v[at+4:], o.seen(binary.LittleEndian.Uint32(v[at+4:])))
		}
	}
	return v
}

// sameMeta reports whether meta would change nothing.
func (r *rewinder) sameMeta(n node, to *unix.Stat_t, want *attrs) (bool, error) {
	var st unix.Stat_t
	if err := n.stat(&st); err != nil {
		return false, err
	}
	if st.Mode != to.Mode || st.Uid != r.Owners.seen(to.Uid) || st.Gid != r.Owners.seen(to.Gid) ||
		mtimeNs(&st) != mtimeNs(to) {
		return false, nil
	}
	have, err := n.attrs()
	return !have.cut && sameAttrs(withoutUnstored(&have), r.inLiveRoot(want)), err
}

// meta sets the owner, mode, attributes and time of an entry to those of another one, and reports whether more than
// the time was different. The root directory of a part keeps an owner that cannot be changed, and then also its mode.
func (r *rewinder) meta(n node, to *unix.Stat_t, want *attrs, part bool) (changed bool, err error) {
	var st unix.Stat_t
	if err := n.stat(&st); err != nil {
		return false, err
	}
	keepMode := false
	if uid, gid := r.Owners.seen(to.Uid), r.Owners.seen(to.Gid); st.Uid != uid || st.Gid != gid {
		if r.Owners.Size > 0 && max(to.Uid, to.Gid) >= r.Owners.Size {
			return false, unowned(to, nil)
		}
		err := r.s.fs.ChownAt(n.fd, n.name, uid, gid)
		refused := errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOVERFLOW)
		switch {
		case refused && part:
			keepMode = true
		case refused:
			return false, unowned(to, err)
		case err != nil:
			return false, err
		default:
			changed = true
		}
	}
	c, err := r.setAttrs(n, want)
	if err != nil {
		return changed, err
	}
	changed = changed || c
	if err := n.stat(&st); err != nil { // a new owner or access control list clears mode bits
		return changed, err
	}
	if st.Mode != to.Mode && !keepMode && st.Mode&unix.S_IFMT != unix.S_IFLNK {
		changed = true
		if err := r.chmod(n, to.Mode); err != nil {
			return changed, err
		}
	}
	if mtimeNs(&st) == mtimeNs(to) {
		return changed, nil
	}
	return changed || !dirfd.IsDir(&st), r.s.fs.Utimes(n.fd, n.name, mtimeNs(to))
}

// setAttrs makes the attributes of an entry those of want.
func (r *rewinder) setAttrs(n node, want *attrs) (changed bool, err error) {
	a, err := n.attrs()
	if err != nil {
		return false, err
	}
	if err := a.whole(); err != nil {
		return false, fault.New(fault.Unsupported, "a file of this sandbox has too many attributes to list").
			Because(err).
			WithHint("drop --in-place, so that the sandbox is stopped")
	}
	have, want := withoutUnstored(&a), r.inLiveRoot(want)
	for _, x := range lacking(have, want) {
		if slices.ContainsFunc(want.list, func(y xattr) bool { return x.Key == y.Key }) {
			continue // it is set below
		}
		changed = true
		if n.name == "" {
			err = r.s.fs.RemoveXattr(n.fd, unescape(x.Key))
		} else {
			err = r.s.fs.RemoveXattrAt(n.fd, n.name, unescape(x.Key))
		}
		if err != nil && !errors.Is(err, unix.ENODATA) {
			return changed, fault.Wrap(err, "remove attribute %s", unescape(x.Key))
		}
	}
	for _, x := range lacking(want, have) {
		changed = true
		if n.name == "" {
			err = r.s.fs.SetXattr(n.fd, unescape(x.Key), x.Value)
		} else {
			err = r.s.fs.SetXattrAt(n.fd, n.name, unescape(x.Key), x.Value)
		}
		if err != nil {
			return changed, fault.Wrap(err, "set attribute %s", unescape(x.Key))
		}
	}
	return changed, nil
}

// withoutUnstored removes attributes that a snapshot does not store.
func withoutUnstored(a *attrs) *attrs {
	a.list = slices.DeleteFunc(a.list, func(x xattr) bool { return strings.HasPrefix(x.Key, "security.selinux") })
	return a
}

func (r *rewinder) chmod(n node, mode uint32) error {
	if n.name == "" {
		return r.s.fs.Chmod(n.fd, mode)
	}
	// Use a descriptor of the entry, so that a link is not followed.
	fd, err := unix.Openat(n.fd, n.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return r.s.fs.ChmodAt(unix.AT_FDCWD, vfs.FDPath(fd), mode)
}

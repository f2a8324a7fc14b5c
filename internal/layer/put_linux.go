package layer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// putter writes copies of entries into a tree that is being built: a layer, or a plain tree that a view is
// materialised into. It is safe for concurrent use.
type putter struct {
	s       *Store
	ctx     context.Context
	toPlain bool // attributes that overlayfs escaped get their names back
	fromRaw bool // the source is a plain tree, not in overlay form
	lenient bool // an owner or attribute that cannot be set is ignored, not an error
	strip   bool // Coppice's own marks are left out
	// remember stores an owner that cannot be set as root emulation does, so that an exported image has it.
	remember bool
	// omit leaves out attributes that an entry of the new tree has no room for, and counts such entries in unkept,
	// instead of failing. linkDir must be open.
	omit   bool
	unkept atomic.Int64 // entries that lack attributes
	rooms  atomic.Int64 // files that diskHasRoom has made

	linkDir int // directory with the first copies of files with several names
	mu      sync.Mutex
	links   map[devIno]*linked // guarded by mu
	nlinks  int                // guarded by mu
}

// linked is the first copy of a file with several names. ready is closed when name can be linked to, or err is set.
type linked struct {
	name  string
	err   error
	ready chan struct{}
}

// put copies the entry (src, name), which is not a directory, to (dst, to). It returns the entry's state.
func (p *putter) put(src int, name string, dst int, to string, st *unix.Stat_t) error {
	if st.Nlink > 1 && p.linkDir >= 0 {
		return p.putLinked(src, name, dst, to, st)
	}
	return p.putOnce(src, name, dst, to, st)
}

func (p *putter) putLinked(src int, name string, dst int, to string, st *unix.Stat_t) error {
	key := devIno{st.Dev, st.Ino}
	p.mu.Lock()
	l := p.links[key]
	first := l == nil
	if first {
		if p.links == nil {
			p.links = map[devIno]*linked{}
		}
		p.nlinks++
		l = &linked{name: strconv.Itoa(p.nlinks), ready: make(chan struct{})}
		p.links[key] = l
	}
	p.mu.Unlock()
	if !first {
		<-l.ready
		if l.err != nil {
			return l.err
		}
		err := p.s.fs.Link(p.linkDir, l.name, dst, to)
		if errors.Is(err, unix.EMLINK) {
			return p.putOnce(src, name, dst, to, st)
		}
		return err
	}
	defer close(l.ready)
	if l.err = p.putOnce(src, name, dst, to, st); l.err == nil {
		l.err = p.s.fs.Link(dst, to, p.linkDir, l.name)
	}
	return l.err
}

func (p *putter) putOnce(src int, name string, dst int, to string, st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return p.file(src, name, dst, to, st)
	case unix.S_IFLNK:
		target, err := dirfd.Readlink(src, name)
		if err != nil {
			return err
		}
		if err := p.s.fs.Symlink(target, dst, to); err != nil {
			return err
		}
	case unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK:
		if p.fromRaw && isWhiteout(st) {
			return p.zeroDevice(src, name, dst, to, st)
		}
		mode := st.Mode
		if err := p.s.fs.Mknod(dst, to, mode, st.Rdev); err != nil {
			if errors.Is(err, unix.EPERM) {
				return fault.Wrap(err, "creating device %d:%d requires root on the host", unix.Major(st.Rdev), unix.Minor(st.Rdev))
			}
			return err
		}
		if err := p.s.fs.ChmodAt(dst, to, st.Mode); err != nil {
			return err
		}
	default:
		// The kernel has no other types but a directory, which the caller has seen not to be one.
		return fault.New(fault.Conflict, "the file was replaced by another one while it was copied").
			WithHint("try again, or stop what changes it: coppice process ls NAME; coppice stop NAME")
	}
	a, err := readAttrs(xattrAt(src, name), p.fromRaw)
	if err != nil {
		return err
	}
	if err := p.owner(dst, to, st); err != nil {
		return err
	}
	if err := p.attrs(&a, func(k string, v []byte) error { return p.s.fs.SetXattrAt(dst, to, k, v) }); err != nil {
		return err
	}
	return p.s.fs.Utimes(dst, to, mtimeNs(st))
}

// file copies a regular file.
func (p *putter) file(src int, name string, dst int, to string, st *unix.Stat_t) error {
	in, now, err := openFileAt(src, name)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	*st = now
	if p.toPlain && st.Size == 0 {
		if done, err := p.asDevice(in, dst, to, st); done || err != nil {
			return err
		}
	}
	out, err := p.s.fs.Create(dst, to, st.Mode&0o777)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	if err := p.s.copyContent(p.ctx, out, in, st); err != nil {
		return err
	}
	return p.meta(xattrSource{fd: in}, out, st)
}

// zeroDevice stores a character device 0:0 of a plain tree. In a layer that device is a
// whiteout, so it is stored as root emulation stores devices: as an empty file.
func (p *putter) zeroDevice(src int, name string, dst int, to string, st *unix.Stat_t) error {
	out, err := p.s.fs.Create(dst, to, st.Mode&0o777)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	if err := p.s.fs.SetXattr(out, xattrDevice, []byte(zeroDevice)); err != nil {
		return fault.Wrap(err, "store the character device 0:0")
	}
	return p.meta(xattrSource{path: vfs.FDPath(src) + "/" + name}, out, st)
}

// asDevice makes the character device 0:0 that the open file in represents in a plain tree, and reports whether it
// did: only root on the host can.
func (p *putter) asDevice(in, dst int, to string, st *unix.Stat_t) (bool, error) {
	value, err := readXattr(xattrSource{fd: in}, xattrDevice)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) || err == nil && string(value) != zeroDevice {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = p.s.fs.Mknod(dst, to, unix.S_IFCHR|st.Mode&0o777, 0)
	if errors.Is(err, unix.EPERM) {
		return false, nil
	}
	if err == nil {
		err = p.owner(dst, to, st)
	}
	if err == nil {
		err = p.s.fs.ChmodAt(dst, to, st.Mode)
	}
	if err != nil {
		return false, err
	}
	return true, p.s.fs.Utimes(dst, to, mtimeNs(st))
}

// meta copies metadata and attributes to an open file, its time last.
func (p *putter) meta(from xattrSource, out int, st *unix.Stat_t) error {
	a, err := readAttrs(from, p.fromRaw)
	if err != nil {
		return err
	}
	chowned := st.Uid != 0 || st.Gid != 0
	if chowned {
		if err := p.owner(out, "", st); err != nil {
			return err
		}
	}
	if chowned || st.Mode&0o7000 != 0 || st.Mode&p.s.umask != 0 {
		if err := p.s.fs.Chmod(out, st.Mode); err != nil {
			return err
		}
	}
	if err := p.attrs(&a, func(k string, v []byte) error { return p.s.fs.SetXattr(out, k, v) }); err != nil {
		return err
	}
	return p.s.fs.Utimes(out, "", mtimeNs(st))
}

// owner sets the owner. New entries belong to uid and gid 0 already.
func (p *putter) owner(dir int, name string, st *unix.Stat_t) error {
	if st.Uid == 0 && st.Gid == 0 {
		return nil
	}
	err := p.s.fs.ChownAt(dir, name, st.Uid, st.Gid)
	if err == nil || !p.lenient || !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	if p.remember && name == "" {
		return p.s.fs.SetXattr(dir, xattrOwner, fmt.Appendf(nil, "%d:%d", st.Uid, st.Gid))
	}
	return nil
}

// dirMeta copies metadata and attributes to an open, finished directory.
func (p *putter) dirMeta(src, dst int, opaque bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return err
	}
	a, err := readAttrs(xattrSource{fd: src}, p.fromRaw)
	if err != nil {
		return err
	}
	return p.dirMetaOf(&st, &a, dst, opaque)
}

func (p *putter) dirMetaOf(st *unix.Stat_t, a *attrs, dst int, opaque bool) error {
	if st.Uid != 0 || st.Gid != 0 {
		if err := p.owner(dst, "", st); err != nil {
			return err
		}
	}
	if opaque { // before attributes of a program, which may fill the space for them
		if err := p.s.fs.SetXattr(dst, xattrOpaque, []byte("y")); err != nil {
			return err
		}
	}
	if err := p.attrs(a, func(k string, v []byte) error { return p.s.fs.SetXattr(dst, k, v) }); err != nil {
		return err
	}
	if err := p.s.fs.Chmod(dst, st.Mode); err != nil {
		return err
	}
	return p.s.fs.Utimes(dst, "", mtimeNs(st))
}

// whiteout marks name as deleted.
func (p *putter) whiteout(dst int, name string) error {
	return p.s.whiteout(dst, name)
}

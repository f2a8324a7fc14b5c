package vfs

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// CrashClone makes a directory in a state that a crash at this moment could leave: everything that was synced, and as
// much of the rest as how says. The same previous calls and the same how produce the same clone. Descriptors and
// locks do not survive a crash, so a store can be opened there while the original is open.
func (c *Crashable) CrashClone(to string, how Crash) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	root, err := c.node(unix.AT_FDCWD, c.dir)
	if err != nil {
		return err
	}
	k := cloner{c: c, how: how, rand: rand.New(rand.NewPCG(how.Seed, 1)), made: map[inode]string{}}
	k.choose()
	err = k.copy(root, to)
	c.releaseLocked()
	return err
}

// cloner makes one clone.
type cloner struct {
	c     *Crashable
	how   Crash
	rand  *rand.Rand
	names map[inode]map[string]*node // node of each name with unsynced changes, after the crash
	last  map[slot]*node             // node of each name after the last change
	made  map[inode]string           // path in the clone
}

func (k *cloner) keeps(percent int) bool { return k.rand.IntN(100) < percent }

// choose decides which changes of names survive. A change that follows a lost one is lost.
func (k *cloner) choose() {
	k.names, k.last = map[inode]map[string]*node{}, map[slot]*node{}
	lost := map[slot]bool{}
	end := len(k.c.names)
	if k.how.InOrder && k.how.Names < 100 {
		end = k.rand.IntN(1 + min(end, end*k.how.Names))
	}
	for i, one := range k.c.names {
		kept := i < end && (k.how.InOrder || k.keeps(k.how.Names))
		for _, s := range one.at {
			kept = kept && !lost[s]
		}
		for i, s := range one.at {
			k.last[s] = one.is[i]
			if k.names[s.dir] == nil {
				k.names[s.dir] = map[string]*node{}
			}
			if kept {
				k.names[s.dir][s.name] = one.is[i]
			} else if !lost[s] {
				lost[s] = true
				k.names[s.dir][s.name] = one.was[i]
			}
		}
	}
}

// copy copies a file of any type, whose name survives the crash.
func (k *cloner) copy(n *node, to string) error {
	mode, err := n.mode()
	if err != nil {
		return err
	}
	if first, ok := k.made[n.id]; ok {
		if mode == unix.S_IFDIR {
			return nil // lost changes may leave a directory with two names
		}
		return os.Link(first, to)
	}
	k.made[n.id] = to
	m, err := n.metadata()
	if err != nil {
		return err
	}
	if n.meta != nil && !k.keeps(k.how.Data) {
		m = *n.meta
	}
	switch mode {
	case unix.S_IFDIR:
		err = k.copyDir(n, to)
	case unix.S_IFREG:
		err = k.copyFile(n, to)
	case unix.S_IFLNK:
		var target string
		if target, err = n.target(); err == nil {
			err = os.Symlink(target, to)
		}
	default:
		err = unix.Mknod(to, m.mode, int(m.dev))
	}
	if err != nil {
		return err
	}
	return m.apply(to)
}

func (k *cloner) copyDir(n *node, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	names, err := list(n.path())
	if err != nil {
		return err
	}
	differ := k.names[n.id]
	for name := range differ {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		sub, err := k.c.maybe(n.fd, name)
		if err != nil {
			return err
		}
		// Ignore the choice if the name was changed by other means since.
		if chosen, ok := differ[name]; ok && sub == k.last[slot{n.id, name}] {
			sub = chosen
		}
		if sub == nil {
			continue
		}
		if err := k.copy(sub, filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

func (k *cloner) copyFile(n *node, to string) (err error) {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if n.data == nil || k.how.Data == 100 {
		return n.copyTo(f)
	}
	now, err := n.content()
	if err != nil {
		return err
	}
	_, err = f.Write(k.mix(*n.data, now))
	return err
}

// blockSize is the unit in which a medium writes.
const blockSize = 512

// mix returns the content of a file that was not synced since it was old: each block is either the synced or the last
// written one. A file may have grown before its blocks were written.
func (k *cloner) mix(old, now []byte) []byte {
	out := bytes.Clone(old)
	if len(now) > len(old) && k.keeps(k.how.Data) {
		out = append(out, make([]byte, len(now)-len(old))...)
	}
	for at := 0; at < len(now); at += blockSize {
		block := now[at:min(at+blockSize, len(now))]
		if !k.keeps(k.how.Data) {
			continue
		}
		if more := at + len(block) - len(out); more > 0 {
			out = append(out, make([]byte, more)...)
		}
		n := copy(out[at:], block)
		clear(out[at+n : min(at+blockSize, len(out))])
	}
	if len(now) < len(old) && k.keeps(k.how.Data) {
		out = out[:len(now)]
	}
	return out
}

// metadata is the metadata of an inode.
type metadata struct {
	mode, uid, gid uint32
	dev            uint64
	mtime          unix.Timespec
	attrs          map[string]string
}

func (n *node) mode() (uint32, error) {
	var st unix.Stat_t
	err := unix.Fstat(n.fd, &st)
	return st.Mode & unix.S_IFMT, err
}

func (n *node) metadata() (metadata, error) {
	var st unix.Stat_t
	if err := unix.Fstat(n.fd, &st); err != nil {
		return metadata{}, err
	}
	m := metadata{mode: st.Mode, uid: st.Uid, gid: st.Gid, dev: st.Rdev, mtime: st.Mtim, attrs: map[string]string{}}
	buf := make([]byte, 1<<16)
	size, err := unix.Listxattr(n.path(), buf)
	if errors.Is(err, unix.ENOTSUP) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	for key := range strings.SplitSeq(string(buf[:size]), "\x00") {
		if !strings.HasPrefix(key, "user.") && !strings.HasPrefix(key, "trusted.") {
			continue
		}
		value := make([]byte, 1<<16)
		got, err := unix.Getxattr(n.path(), key, value)
		if err != nil {
			return m, err
		}
		m.attrs[key] = string(value[:got])
	}
	return m, nil
}

// apply sets the metadata of a new file.
func (m metadata) apply(to string) error {
	if err := os.Lchown(to, int(m.uid), int(m.gid)); err != nil {
		return err
	}
	for key, value := range m.attrs {
		if err := unix.Lsetxattr(to, key, []byte(value), 0); err != nil {
			return err
		}
	}
	if m.mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(to, m.mode&0o7777); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, to, []unix.Timespec{m.mtime, m.mtime}, unix.AT_SYMLINK_NOFOLLOW)
}

func (n *node) target() (string, error) {
	b := make([]byte, unix.PathMax)
	size, err := unix.Readlinkat(n.fd, "", b)
	return string(b[:max(size, 0)]), err
}

func (n *node) content() ([]byte, error) { return os.ReadFile(n.path()) }

// copyTo copies the content to an empty file, and keeps its holes.
func (n *node) copyTo(to *os.File) error {
	from, err := os.Open(n.path())
	if err != nil {
		return err
	}
	defer from.Close()
	st, err := from.Stat()
	if err != nil {
		return err
	}
	for at := int64(0); at < st.Size(); {
		begin, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return err
		}
		if at, err = unix.Seek(int(from.Fd()), begin, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(to, begin), io.NewSectionReader(from, begin, at-begin)); err != nil {
			return err
		}
	}
	return to.Truncate(st.Size())
}

// list returns the names in a directory; none if the directory was removed.
func list(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return names, err
}

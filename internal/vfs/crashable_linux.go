package vfs

import (
	"errors"
	"math/rand/v2"
	"sync"

	"golang.org/x/sys/unix"
)

// Crashable passes calls to the real file system and records which of their effects were not synced yet. CrashClone
// makes a directory in a state that a crash could leave.
//
// The model is the guarantees of POSIX and of common file systems. Sync of a file makes its content and metadata
// durable, not its name. Sync of a directory makes its names durable. A rename is atomic, and durable when the
// directory that it moves to is synced. Changes of one name reach the disk in order; changes of different names, and
// blocks of a file, in any order.
//
// Changes below the directory by other means than Crashable count as durable, unless Unsync says otherwise. No call
// waits for the medium. Crashable is for tests; its directory is best on a tmpfs.
type Crashable struct {
	// OnCall, if set, runs before each call, one at a time. It may call CrashClone.
	OnCall func(Op)

	dir   string
	calls sync.Mutex // held while OnCall runs, before mu
	mu    sync.Mutex
	nodes map[inode]*node // guarded by mu: the files that changes or unsynced writes refer to
	names []*change       // guarded by mu: unsynced changes of names, oldest first
}

var _ FS = (*Crashable)(nil)

// Crash says how much of the unsynced state a crash leaves, in percent: of the changes of names, and of the blocks
// and metadata of files. Seed chooses which. With InOrder, a lost change of a name loses all later ones too, as on
// file systems with a journal.
type Crash struct {
	Names, Data int
	InOrder     bool
	Seed        uint64
}

// Kill is a crash of the process only, which loses nothing.
var Kill = Crash{Names: 100, Data: 100}

// PowerLoss returns a crash that loses all, some or none of the names, and likewise of the data.
func PowerLoss(seed uint64) Crash {
	r := rand.New(rand.NewPCG(seed, 0))
	some := [...]int{0, 50, 90, 100}
	return Crash{Names: some[r.IntN(len(some))], Data: some[r.IntN(len(some))], Seed: seed}
}

// inode identifies a file while it exists.
type inode struct{ dev, ino uint64 }

// node is a file of any type. Its descriptor keeps the inode from being used again.
type node struct {
	id   inode
	fd   int       // O_PATH
	data *[]byte   // the content when it was last synced; nil: unchanged since
	meta *metadata // the metadata when they were last synced; nil: unchanged since
}

func (n *node) path() string { return FDPath(n.fd) }

// slot is a name in a directory.
type slot struct {
	dir  inode
	name string
}

// change is a change of one name, or of both names of a rename; the last name makes it durable.
type change struct {
	dirs []*node // of each name
	at   []slot
	was  []*node // node of each name before; nil: none
	is   []*node
}

// NewCrashable returns a Crashable for a directory, all of which is durable. The caller calls Close.
func NewCrashable(dir string) *Crashable {
	return &Crashable{dir: dir, nodes: map[inode]*node{}}
}

// Close releases the descriptors.
func (c *Crashable) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushLocked()
	return nil
}

// Unsync makes everything below a directory count as never synced, for files that were written by other means.
func (c *Crashable) Unsync(dir string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, err := c.node(unix.AT_FDCWD, dir)
	if err != nil {
		return err
	}
	return c.unsyncLocked(at)
}

func (c *Crashable) unsyncLocked(dir *node) error {
	names, err := list(dir.path())
	if err != nil {
		return err
	}
	for _, name := range names {
		n, err := c.node(dir.fd, name)
		if err != nil {
			return err
		}
		c.names = append(c.names, &change{dirs: []*node{dir}, at: []slot{{dir.id, name}}, was: []*node{nil}, is: []*node{n}})
		switch mode, err := n.mode(); {
		case err != nil:
			return err
		case mode == unix.S_IFREG:
			n.data = new([]byte)
		case mode == unix.S_IFDIR:
			if err := c.unsyncLocked(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// node returns the file that a name leads to; "" is the descriptor itself.
func (c *Crashable) node(dir int, name string) (*node, error) {
	if name == "" {
		return c.open(unix.AT_FDCWD, FDPath(dir), 0)
	}
	return c.open(dir, name, unix.O_NOFOLLOW)
}

func (c *Crashable) open(dir int, name string, flags int) (*node, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, err
	}
	id := inode{st.Dev, st.Ino}
	if n := c.nodes[id]; n != nil {
		unix.Close(fd)
		return n, nil
	}
	n := &node{id: id, fd: fd}
	c.nodes[id] = n
	return n, nil
}

// maybe is node for a name that may not exist.
func (c *Crashable) maybe(dir int, name string) (*node, error) {
	n, err := c.node(dir, name)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return n, err
}

// begin runs OnCall and locks mu.
func (c *Crashable) begin(op Op) {
	if c.OnCall != nil {
		c.calls.Lock()
		defer c.calls.Unlock()
		c.OnCall(op)
	}
	c.mu.Lock()
}

// name is a name that a call changes.
type name struct {
	dir  int
	base string
}

// change executes a call that changes names, and records it.
func (c *Crashable) change(op Op, call func() error, names ...name) error {
	c.begin(op)
	defer c.mu.Unlock()
	one := &change{}
	for _, n := range names {
		dir, err := c.node(n.dir, "")
		if err != nil {
			return err
		}
		was, err := c.maybe(n.dir, n.base)
		if err != nil {
			return err
		}
		one.dirs = append(one.dirs, dir)
		one.at = append(one.at, slot{dir.id, n.base})
		one.was = append(one.was, was)
	}
	if err := call(); err != nil {
		return err
	}
	for _, n := range names {
		is, err := c.maybe(n.dir, n.base)
		if err != nil {
			return err
		}
		one.is = append(one.is, is)
		if op == OpCreate {
			is.data = new([]byte)
		}
	}
	c.names = append(c.names, one)
	return nil
}

// write executes a call that changes the content of a file.
func (c *Crashable) write(op Op, fd int, call func() error) error {
	c.begin(op)
	defer c.mu.Unlock()
	n, err := c.node(fd, "")
	if err != nil {
		return err
	}
	if n.data == nil {
		data, err := n.content()
		if err != nil {
			return err
		}
		n.data = &data
	}
	return call()
}

// describe executes a call that changes the metadata of the file that a name leads to. The file is opened with these
// flags.
func (c *Crashable) describe(op Op, dir int, name string, flags int, call func() error) error {
	c.begin(op)
	defer c.mu.Unlock()
	if name == "" {
		dir, name, flags = unix.AT_FDCWD, FDPath(dir), 0
	}
	n, err := c.open(dir, name, flags)
	if err != nil {
		return err
	}
	if n.meta == nil {
		m, err := n.metadata()
		if err != nil {
			return err
		}
		n.meta = &m
	}
	return call()
}

// settleLocked makes the changes of names in a directory durable, with the changes that precede them.
func (c *Crashable) settleLocked(dir inode) {
	durable := map[slot]bool{}
	var rest []*change
	for i := len(c.names) - 1; i >= 0; i-- {
		one := c.names[i]
		last := len(one.at) - 1
		is := one.at[last].dir == dir
		for _, s := range one.at {
			is = is || durable[s]
		}
		if !is {
			rest = append(rest, one)
			continue
		}
		for _, s := range one.at {
			durable[s] = true
		}
	}
	c.names = c.names[:0]
	for i := len(rest) - 1; i >= 0; i-- {
		c.names = append(c.names, rest[i])
	}
}

// releaseLocked forgets the files without unsynced changes.
func (c *Crashable) releaseLocked() {
	used := map[*node]bool{nil: true}
	for _, one := range c.names {
		for i := range one.at {
			used[one.dirs[i]], used[one.was[i]], used[one.is[i]] = true, true, true
		}
	}
	for id, n := range c.nodes {
		if n.data == nil && n.meta == nil && !used[n] {
			unix.Close(n.fd)
			delete(c.nodes, id)
		}
	}
}

func (c *Crashable) flushLocked() {
	c.names = nil
	for _, n := range c.nodes {
		n.data, n.meta = nil, nil
	}
	c.releaseLocked()
}

// Sync implements FS.
func (c *Crashable) Sync(fd int) error {
	c.begin(OpSync)
	defer c.mu.Unlock()
	n, err := c.node(fd, "")
	if err != nil {
		return err
	}
	n.data, n.meta = nil, nil
	c.settleLocked(n.id)
	c.releaseLocked()
	return nil
}

// SyncFS implements FS.
func (c *Crashable) SyncFS(int) error {
	c.begin(OpSync)
	defer c.mu.Unlock()
	c.flushLocked()
	return nil
}

// Create implements FS.
func (c *Crashable) Create(dir int, base string, mode uint32) (fd int, err error) {
	err = c.change(OpCreate, func() (err error) {
		fd, err = system{}.Create(dir, base, mode)
		return err
	}, name{dir, base})
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// Mkdir implements FS.
func (c *Crashable) Mkdir(dir int, base string, mode uint32) error {
	return c.change(OpMkdir, func() error { return system{}.Mkdir(dir, base, mode) }, name{dir, base})
}

// Symlink implements FS.
func (c *Crashable) Symlink(target string, dir int, base string) error {
	return c.change(OpSymlink, func() error { return system{}.Symlink(target, dir, base) }, name{dir, base})
}

// Mknod implements FS.
func (c *Crashable) Mknod(dir int, base string, mode uint32, dev uint64) error {
	return c.change(OpMknod, func() error { return system{}.Mknod(dir, base, mode, dev) }, name{dir, base})
}

// Link implements FS.
func (c *Crashable) Link(fromDir int, from string, toDir int, to string) error {
	return c.change(OpLink, func() error { return system{}.Link(fromDir, from, toDir, to) }, name{toDir, to})
}

// Rename implements FS.
func (c *Crashable) Rename(fromDir int, from string, toDir int, to string) error {
	return c.change(OpRename, func() error { return system{}.Rename(fromDir, from, toDir, to) }, name{fromDir, from},
		name{toDir, to})
}

// Unlink implements FS.
func (c *Crashable) Unlink(dir int, base string) error {
	return c.change(OpUnlink, func() error { return system{}.Unlink(dir, base) }, name{dir, base})
}

// Rmdir implements FS.
func (c *Crashable) Rmdir(dir int, base string) error {
	return c.change(OpRmdir, func() error { return system{}.Rmdir(dir, base) }, name{dir, base})
}

// WriteAt implements FS.
func (c *Crashable) WriteAt(fd int, p []byte, off int64) error {
	return c.write(OpWrite, fd, func() error { return system{}.WriteAt(fd, p, off) })
}

// CopyRange implements FS.
func (c *Crashable) CopyRange(dst, src int, off, n int64) (copied int64, err error) {
	err = c.write(OpCopy, dst, func() (err error) {
		copied, err = system{}.CopyRange(dst, src, off, n)
		return err
	})
	return copied, err
}

// Clone implements FS.
func (c *Crashable) Clone(dst, src int) error {
	return c.write(OpCopy, dst, func() error { return system{}.Clone(dst, src) })
}

// Truncate implements FS.
func (c *Crashable) Truncate(fd int, size int64) error {
	return c.write(OpTruncate, fd, func() error { return system{}.Truncate(fd, size) })
}

// Punch implements FS.
func (c *Crashable) Punch(fd int, off, n int64) error {
	return c.write(OpPunch, fd, func() error { return system{}.Punch(fd, off, n) })
}

// Chmod implements FS.
func (c *Crashable) Chmod(fd int, mode uint32) error {
	return c.describe(OpChmod, fd, "", 0, func() error { return system{}.Chmod(fd, mode) })
}

// ChmodAt implements FS.
func (c *Crashable) ChmodAt(dir int, base string, mode uint32) error {
	return c.describe(OpChmod, dir, base, 0, func() error { return system{}.ChmodAt(dir, base, mode) })
}

// ChownAt implements FS.
func (c *Crashable) ChownAt(dir int, base string, uid, gid uint32) error {
	return c.describe(OpChown, dir, base, unix.O_NOFOLLOW, func() error { return system{}.ChownAt(dir, base, uid, gid) })
}

// SetXattr implements FS.
func (c *Crashable) SetXattr(fd int, key string, value []byte) error {
	return c.describe(OpXattr, fd, "", 0, func() error { return system{}.SetXattr(fd, key, value) })
}

// SetXattrAt implements FS.
func (c *Crashable) SetXattrAt(dir int, base, key string, value []byte) error {
	return c.describe(OpXattr, dir, base, unix.O_NOFOLLOW,
		func() error { return system{}.SetXattrAt(dir, base, key, value) })
}

// RemoveXattr implements FS.
func (c *Crashable) RemoveXattr(fd int, key string) error {
	return c.describe(OpXattr, fd, "", 0, func() error { return system{}.RemoveXattr(fd, key) })
}

// RemoveXattrAt implements FS.
func (c *Crashable) RemoveXattrAt(dir int, base, key string) error {
	return c.describe(OpXattr, dir, base, unix.O_NOFOLLOW, func() error { return system{}.RemoveXattrAt(dir, base, key) })
}

// Utimes implements FS.
func (c *Crashable) Utimes(dir int, base string, mtime int64) error {
	return c.describe(OpTimes, dir, base, unix.O_NOFOLLOW, func() error { return system{}.Utimes(dir, base, mtime) })
}

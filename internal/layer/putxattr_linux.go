package layer

import (
	"errors"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// attrs sets the attributes of an entry through set.
func (p *putter) attrs(a *attrs, set func(key string, value []byte) error) error {
	err := a.whole()
	lacks := err != nil
	if lacks && !p.omit {
		return fault.Wrap(err, "list attributes")
	}
	for _, x := range a.list {
		kept, err := p.xattr(x, set)
		if err != nil {
			return err
		}
		lacks = lacks || !kept
	}
	if lacks {
		p.unkept.Add(1)
	}
	return nil
}

// xattr sets one attribute through set, and reports whether the entry had room for it.
func (p *putter) xattr(x xattr, set func(key string, value []byte) error) (kept bool, err error) {
	key := x.Key
	if p.toPlain {
		key = unescape(key)
	}
	if p.strip && isMark(x) {
		return true, nil
	}
	err = set(key, x.Value)
	if p.omit && errors.Is(err, unix.ENOSPC) && p.diskHasRoom() {
		// Retry: the disk may have been full, and have room now.
		if err = set(key, x.Value); errors.Is(err, unix.ENOSPC) {
			return false, nil
		}
	}
	switch {
	case err == nil:
		return true, nil
	case p.omit && unfit(err):
		return false, nil
	case p.lenient && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EINVAL)):
		return true, nil
	case strings.HasPrefix(key, "security.selinux"):
		return true, nil // labels belong to the host's policy
	}
	return false, fault.Wrap(err, "set attribute %s", key)
}

// unfit reports whether setxattr(2) failed because of the attribute itself: its escaped name
// is too long (ERANGE), or the names of one hash are too long together for btrfs (EOVERFLOW).
func unfit(err error) bool { return errors.Is(err, unix.ERANGE) || errors.Is(err, unix.EOVERFLOW) }

// diskHasRoom distinguishes the two meanings of ENOSPC for an attribute. If a new file gets a block, the file system
// is not full, but the space for attributes of the entry is.
func (p *putter) diskHasRoom() bool {
	name := "room" + strconv.FormatInt(p.rooms.Add(1), 10)
	fd, err := p.s.fs.Create(p.linkDir, name, 0o600)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	bp := copyBufs.Get().(*[]byte)
	defer copyBufs.Put(bp)
	err = p.s.fs.WriteAt(fd, (*bp)[:roomSize], 0)
	return errors.Join(err, p.s.fs.Unlink(p.linkDir, name)) == nil
}

// roomSize is more than any file system keeps in an inode, and at least one block for attributes.
const roomSize = 64 << 10

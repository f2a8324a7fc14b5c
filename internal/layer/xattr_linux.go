package layer

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/vfs"
)

const (
	xattrOverlay = "user.overlay."         // overlayfs's own, with the option userxattr
	xattrEscaped = "user.overlay.overlay." // where overlayfs keeps an attribute that a program set under such a name
	xattrOpaque  = "user.overlay.opaque"
	// xattrOrigin says where overlayfs copied an entry from. If it is empty, only that it was copied, so that the
	// directory may contain whiteouts.
	xattrOrigin = "user.overlay.origin"
	// xattrSkeleton marks a directory of a layer that only leads to a part: its owner, mode and time are not part of
	// the snapshot. No program in a sandbox can set it: overlayfs escapes its name, and so does readAttrs for a plain
	// tree.
	xattrSkeleton = "user.overlay.coppice.skeleton"
	// xattrSkeleton1 is the mark in layers without xattrMarks. Programs can set it: in any other tree it has no
	// meaning, and is not shown.
	xattrSkeleton1 = "user.coppice.skeleton"
	// xattrMarks on the directory of a layer says that its marks have the names above.
	xattrMarks = rootspec.MarksXattr
	// xattrOwner is where root emulation stores a requested owner that it could not set: "uid:gid". Package format
	// puts it into tar headers.
	xattrOwner = "user.coppice.owner"
	// xattrDevice is where root emulation stores the requested device, on an empty file; zeroDevice is the value for
	// the device that is a whiteout in a layer.
	xattrDevice = "user.coppice.device"
	zeroDevice  = "c 0:0"
)

// xattr is one extended attribute.
type xattr struct {
	Key   string
	Value []byte
}

// attrs are the attributes of an entry, sorted by key, without overlayfs's own. The other fields have their meaning.
type attrs struct {
	list     []xattr
	opaque   bool // nothing of lower layers shows through
	maybeXWh bool // opaque=x: regular files below may be whiteouts
	noise    bool // there are attributes of overlayfs that a layer does not keep
	cut      bool // there are more names than can be listed; list has only those of known
}

// known are the attributes that change the type of an entry or the access to it. They can be
// read by name if listxattr(2) fails.
var known = [...]string{
	xattrOpaque, xattrSkeleton, xattrSkeleton1, xattrOwner, xattrDevice,
	"security.capability", "system.posix_acl_access", "system.posix_acl_default",
}

// whole returns E2BIG, as listxattr(2) does, if not all attributes are known.
func (a *attrs) whole() error {
	if a.cut {
		return unix.E2BIG
	}
	return nil
}

// xattrSource reads attributes of one entry: an open descriptor, or a path that
// is not followed.
type xattrSource struct {
	fd   int
	path string
}

func (s xattrSource) list(b []byte) (int, error) {
	if s.path != "" {
		return unix.Llistxattr(s.path, b)
	}
	return unix.Flistxattr(s.fd, b)
}

func (s xattrSource) get(key string, b []byte) (int, error) {
	if s.path != "" {
		return unix.Lgetxattr(s.path, key, b)
	}
	return unix.Fgetxattr(s.fd, key, b)
}

// xattrAt is the source for an entry that is not opened.
func xattrAt(dir int, name string) xattrSource {
	return xattrSource{path: vfs.FDPath(dir) + "/" + name}
}

// keys returns the names of all attributes; none where the file system has no attributes.
func (s xattrSource) keys() ([]string, error) {
	var small [512]byte
	b := small[:]
	n, err := s.list(b)
	for errors.Is(err, unix.ERANGE) {
		if n, err = s.list(nil); err != nil {
			break
		}
		b = make([]byte, n+256)
		n, err = s.list(b)
	}
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(b[:n]), "\x00"), "\x00"), nil
}

// readAttrs reads the attributes of an entry; if there are too many to list, only those in known. plain says that the
// tree is not in overlay form: attributes that a program set under overlayfs's names are then escaped as overlayfs
// would.
func readAttrs(s xattrSource, plain bool) (a attrs, err error) {
	keys, err := s.keys()
	if a.cut = errors.Is(err, unix.E2BIG); a.cut {
		keys, err = known[:], nil
	}
	if err != nil {
		return a, err
	}
	for _, key := range keys {
		value, err := readXattr(s, key)
		if errors.Is(err, unix.ENODATA) || a.cut && errors.Is(err, unix.ENOTSUP) {
			continue // removed since, not readable for this process, or not supported by the file system
		}
		if err != nil {
			return a, err
		}
		a.add(key, value, plain)
	}
	sort.Slice(a.list, func(i, j int) bool { return a.list[i].Key < a.list[j].Key })
	return a, nil
}

// add adds one attribute as it is stored in the tree.
func (a *attrs) add(key string, value []byte, plain bool) {
	switch {
	case plain && strings.HasPrefix(key, xattrOverlay):
		key = xattrEscaped + key[len(xattrOverlay):]
	case key == xattrOpaque:
		a.opaque = string(value) == "y"
		a.maybeXWh = string(value) == "x"
		a.noise = a.noise || !a.opaque
		return
	case key == xattrOrigin && len(value) == 0:
		return
	case strings.HasPrefix(key, xattrOverlay) && !strings.HasPrefix(key, xattrEscaped) && key != xattrSkeleton:
		a.noise = true
		return
	}
	a.list = append(a.list, xattr{key, value})
}

func readXattr(s xattrSource, key string) ([]byte, error) {
	b := make([]byte, 128)
	for {
		n, err := s.get(key, b)
		if errors.Is(err, unix.ERANGE) {
			if n, err = s.get(key, nil); err != nil {
				return nil, err
			}
			b = make([]byte, n+64)
			continue
		}
		if err != nil {
			return nil, err
		}
		return b[:n], nil
	}
}

// isOpaque reports whether the directory hides lower layers.
func isOpaque(fd int) bool {
	var b [4]byte
	n, err := unix.Fgetxattr(fd, xattrOpaque, b[:])
	return err == nil && n == 1 && b[0] == 'y'
}

// sum returns a digest of the attributes that a snapshot keeps; 0 for none.
func (a *attrs) sum() int64 {
	if len(a.list) == 0 {
		return 0
	}
	h := sha256.New()
	var l [8]byte
	for _, x := range a.list {
		binary.LittleEndian.PutUint32(l[:4], uint32(len(x.Key)))
		binary.LittleEndian.PutUint32(l[4:], uint32(len(x.Value)))
		h.Write(l[:])
		h.Write([]byte(x.Key))
		h.Write(x.Value)
	}
	return int64(binary.LittleEndian.Uint64(h.Sum(nil)))
}

// isMark reports whether an attribute is a mark of Coppice, which is not shown.
func isMark(x xattr) bool { return x.Key == xattrSkeleton || x.Key == xattrSkeleton1 }

func sameAttrs(a, b *attrs) bool {
	if len(a.list) != len(b.list) {
		return false
	}
	for i := range a.list {
		if a.list[i].Key != b.list[i].Key || !bytes.Equal(a.list[i].Value, b.list[i].Value) {
			return false
		}
	}
	return true
}

// unescape returns the name under which programs see an attribute of a layer.
func unescape(key string) string {
	if strings.HasPrefix(key, xattrEscaped) {
		return xattrOverlay + key[len(xattrEscaped):]
	}
	return key
}

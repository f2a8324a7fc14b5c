//go:build linux

package rootfstest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Materialise is the reference implementation: it writes the tree of the stack into dst, layer by layer from the
// bottom, as simply as possible. The drivers' results are compared with it.
func Materialise(_ context.Context, s rootspec.Stack, dst string) error {
	if s.Host {
		return errors.New("the reference cannot copy the host")
	}
	for i := len(s.Layers) - 1; i >= 0; i-- {
		if err := apply(s.Layers[i], dst, map[uint64]string{}); err != nil {
			return err
		}
	}
	return nil
}

func apply(layer, dst string, links map[uint64]string) error {
	entries, err := os.ReadDir(layer)
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := layer+"/"+e.Name(), dst+"/"+e.Name()
		var st, old unix.Stat_t
		if err := unix.Lstat(from, &st); err != nil {
			return err
		}
		isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
		keep := isDir && unix.Lstat(to, &old) == nil && old.Mode&unix.S_IFMT == unix.S_IFDIR &&
			xattr(from, "user.overlay.opaque") != "y"
		if !keep {
			if err := os.RemoveAll(to); err != nil {
				return err
			}
		}
		switch {
		case st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0:
		case isDir:
			if !keep {
				if err := os.Mkdir(to, 0o700); err != nil {
					return err
				}
			}
			if err := apply(from, to, links); err != nil {
				return err
			}
		default:
			if err := copyFile(from, to, &st, links); err != nil {
				return err
			}
		}
	}
	return meta(layer, dst)
}

func copyFile(from, to string, st *unix.Stat_t, links map[uint64]string) error {
	if first, ok := links[st.Ino]; ok {
		return os.Link(first, to)
	}
	if st.Nlink > 1 {
		links[st.Ino] = to
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, to); err != nil {
			return err
		}
	case unix.S_IFREG:
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(to, data, 0o600); err != nil {
			return err
		}
	default:
		if err := unix.Mknod(to, st.Mode, int(st.Rdev)); err != nil {
			return err
		}
	}
	return meta(from, to)
}

func meta(from, to string) error {
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return err
	}
	_ = unix.Lchown(to, int(st.Uid), int(st.Gid))
	for _, name := range xattrs(to) {
		if err := unix.Lremovexattr(to, name); err != nil {
			return err
		}
	}
	for _, name := range xattrs(from) {
		if err := unix.Lsetxattr(to, name, []byte(xattr(from, name)), 0); err != nil {
			return err
		}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(to, st.Mode&0o7777); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, to, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

func xattr(p, name string) string {
	b := make([]byte, 4096)
	n, err := unix.Lgetxattr(p, name, b)
	if err != nil {
		return ""
	}
	return string(b[:n])
}

func xattrs(p string) []string {
	b := make([]byte, 4096)
	n, err := unix.Llistxattr(p, b)
	if err != nil {
		return nil
	}
	var names []string
	for _, n := range bytes.Split(b[:n], []byte{0}) {
		if s := string(n); strings.HasPrefix(s, "user.") && !strings.HasPrefix(s, "user.overlay.") {
			names = append(names, s)
		}
	}
	sort.Strings(names)
	return names
}

// Dump prints a tree, one line for each entry, with all its properties: kind, mode, owner, time, attributes, content,
// and which names are links to one file.
func Dump(root string, out io.Writer) error {
	first := map[uint64]string{}
	var walk func(p string) error
	walk = func(p string) error {
		var st unix.Stat_t
		full := root + p
		if full == "" {
			full = "/"
		}
		if err := unix.Lstat(full, &st); err != nil {
			return fmt.Errorf("%q: %w", full, err)
		}
		what := ""
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			what, _ = os.Readlink(full)
		case unix.S_IFREG:
			data, err := os.ReadFile(full)
			if err != nil && !errors.Is(err, fs.ErrPermission) {
				return err
			}
			what = fmt.Sprintf("%d:%x", len(data), sha256.Sum256(data))[:24]
			if st.Nlink > 1 {
				if same, ok := first[st.Ino]; ok {
					what += " = " + strconv.Quote(same)
				} else {
					first[st.Ino] = p
				}
			}
		}
		var attrs []string
		for _, n := range xattrs(full) {
			attrs = append(attrs, n+"="+xattr(full, n))
		}
		fmt.Fprintf(out, "%q %o %d:%d %d.%09d %s %q\n", filepath.Clean("/"+p), st.Mode, st.Uid, st.Gid, st.Mtim.Sec,
			st.Mtim.Nsec, what, attrs)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return nil
		}
		entries, err := os.ReadDir(full)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := walk(p + "/" + e.Name()); err != nil {
				return err
			}
		}
		return nil
	}
	return walk("")
}

//go:build linux

package rootfstest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// names are few, so that layers overlap, and some are unusual.
var names = []string{"a", "b", "c", "d e", "new\nline", "\xff\xfe not utf8", ".wh.x", "ü", "-rf", "a\\b:c,d"}

// GenLayer fills dir with a random layer in overlay form above the tree below ("" for none): files of all kinds,
// attributes, hard links, whiteouts of existing files, opaque directories over existing ones. A layer has no other
// whiteouts, as after a capture: overlayfs lists a whiteout in a directory that no other layer has.
func GenLayer(dir, below string, r *rand.Rand) error {
	g := gen{r: r}
	if err := g.fill(dir, below, 0); err != nil {
		return err
	}
	return g.touch(dir)
}

type gen struct {
	r     *rand.Rand
	files []string
}

func (g *gen) fill(dir, below string, depth int) error {
	for _, n := range names {
		if g.r.IntN(3) > 0 {
			continue
		}
		b := ""
		if below != "" {
			b = below + "/" + n
			if _, err := os.Lstat(b); err != nil {
				b = ""
			}
		}
		if err := g.entry(dir+"/"+n, b, depth); err != nil {
			return err
		}
	}
	return nil
}

func (g *gen) entry(p, below string, depth int) error {
	var err error
	switch k := g.r.IntN(12); {
	case k < 5 && depth < 4:
		if err = os.Mkdir(p, 0o700); err != nil {
			return err
		}
		opaque := below != "" && g.r.IntN(4) == 0
		if opaque {
			below = ""
			err = unix.Lsetxattr(p, "user.overlay.opaque", []byte("y"), 0)
		}
		if err = errors.Join(err, g.fill(p, below, depth+1)); err != nil {
			return err
		}
	case k < 7 && below != "":
		return unix.Mknod(p, unix.S_IFCHR, 0)
	case k == 8:
		err = os.Symlink([]string{"a", "/nonexistent/absolute", "../../..", "nowhere"}[g.r.IntN(4)], p)
	case k == 9:
		err = unix.Mkfifo(p, 0o600)
	case k == 10 && len(g.files) > 0:
		return os.Link(g.files[g.r.IntN(len(g.files))], p)
	default:
		err = os.WriteFile(p, fmt.Appendf(nil, "%d", g.r.Uint64()), 0o600)
		g.files = append(g.files, p)
	}
	if err != nil {
		return err
	}
	return g.touch(p)
}

// touch sets a random mode, attributes and time.
func (g *gen) touch(p string) error {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return err
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFDIR || kind == unix.S_IFREG {
		if g.r.IntN(3) == 0 {
			if err := unix.Lsetxattr(p, "user.test", fmt.Appendf(nil, "%d", g.r.IntN(9)), 0); err != nil {
				return err
			}
		}
		modes := []uint32{0o755, 0o700, 0o711, 0o4755, 0o2750, 0o1777, 0o000, 0o444}
		if err := unix.Chmod(p, modes[g.r.IntN(len(modes))]); err != nil {
			return err
		}
	}
	when := time.Unix(1e9+g.r.Int64N(1e8), g.r.Int64N(1e9))
	ts := []unix.Timespec{unix.NsecToTimespec(when.UnixNano()), unix.NsecToTimespec(when.UnixNano())}
	return unix.UtimesNanoAt(unix.AT_FDCWD, p, ts, unix.AT_SYMLINK_NOFOLLOW)
}

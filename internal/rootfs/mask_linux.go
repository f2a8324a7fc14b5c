package rootfs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Mask is a layer that hides paths of the stack below it: it has a whiteout for each of them, and their parent
// directories, with the metadata of the directories that they cover. Because it is a layer like any other, it applies
// to every reader of a stack, and files that the sandbox creates at hidden paths are visible.
type Mask struct {
	// Below is the stack below the mask.
	Below rootspec.Stack
	// Mounts are the host's mounts, if Below has the host as its base: a hidden directory is also hidden at its other
	// mount points.
	Mounts []*mountinfo.Info
	// Hide are absolute paths; DIR/* means the entries of a directory. A missing path is also hidden, at its first
	// missing component, because it may be created while the mask is mounted. A link is hidden together with its
	// target.
	Hide []string
	// Decoys are absolute paths in hidden places. The mask has an empty file at each of them, as a mount point.
	Decoys []string
	// ByFiles requests removals as files, for a file system that refuses whiteouts: see rootspec.MarksFiles.
	ByFiles bool
}

// Made is a mask on disk.
type Made struct {
	Dir    string
	Places int // number of hidden paths
	// Hidden are the paths of Mask.Hide without links, at all their locations; sorted. Of a path that is missing, it is
	// the whole path, not only its first missing part.
	Hidden []string
	// Decoys maps each of Mask.Decoys to its resolved path.
	Decoys map[string]string
}

// maxMaskLinks is the maximum number of links that are followed in one path.
const maxMaskLinks = 40

// Make creates the mask in the directory home. Its name is a digest of its content, and it never changes: several
// live roots may be mounted through it. Only its times depend on when it was created.
func (k Mask) Make(home string) (Made, error) {
	m, err := k.plan(false)
	if err != nil {
		return Made{}, err
	}
	if _, err := m.dir("/"); err != nil { // a mask that hides nothing is also a layer
		return Made{}, fault.Wrap(err, "hide paths of the root")
	}
	decoys := map[string]string{}
	for _, p := range k.Decoys {
		if decoys[p], err = m.hold(p); err != nil {
			return Made{}, fault.Wrap(err, "create the parent of honeytoken %s", p)
		}
	}
	name, err := m.name()
	if err != nil {
		return Made{}, fault.Wrap(err, "inspect the paths to hide")
	}
	made := Made{Dir: filepath.Join(home, name), Places: m.places, Decoys: decoys,
		Hidden: slices.Sorted(maps.Keys(m.hidden))}
	if _, err := os.Lstat(made.Dir); err == nil {
		return made, nil
	}
	return made, fault.Wrap(m.write(home, made.Dir), "create the mask layer")
}

// Places lists the hidden paths at all their locations, without links; for an empty directory, the directory.
func (k Mask) Places() ([]string, error) {
	m, err := k.plan(true)
	if err != nil {
		return nil, err
	}
	var out []string
	for p, d := range m.dirs {
		if d.opaque {
			out = append(out, p)
		}
		for name := range d.gone {
			out = append(out, join(p, name))
		}
	}
	slices.Sort(out)
	return out, nil
}

// plan determines what is hidden; with all, also where every sandbox has its own files.
func (k Mask) plan(all bool) (*masker, error) {
	m := &masker{
		all: all, byFiles: k.ByFiles,

		stack: newStackReader(k.Below), mounts: k.Mounts, tree: newMountTree(k.Mounts), from: map[string][]string{},
		dirs:   map[string]*maskDir{},
		hidden: map[string]bool{},
		asked:  map[string]bool{}, looked: map[string]seen{}, twice: map[device]bool{}, names: map[string]map[string]bool{},
	}
	devs := map[device]bool{}
	for _, mt := range k.Mounts {
		dev := deviceOf(mt)
		m.twice[dev] = devs[dev] // also for the third and later mounts
		devs[dev] = true
	}
	for _, p := range k.Hide {
		if !path.IsAbs(p) || path.Clean(p) == "/" || strings.Contains(p, "\x00") {
			return nil, fault.New(fault.Invalid, "cannot hide %q", p).WithHint("use a path below /")
		}
		if err := m.hide(path.Clean(p)); err != nil {
			return nil, fault.Wrap(err, "hide %s", p)
		}
	}
	return m, nil
}

type masker struct {
	all     bool // also in places that no root shows
	byFiles bool
	stack   *stackReader
	mounts  []*mountinfo.Info
	tree    mountTree
	from    map[string][]string // directories of the stack that form each path; see stackReader.at
	dirs    map[string]*maskDir // by path, without links
	looked  map[string]seen
	asked   map[string]bool            // paths to hide
	hidden  map[string]bool            // Made.Hidden
	names   map[string]map[string]bool // names in directories on disk
	twice   map[device]bool            // file systems with several mounts
	places  int
	holds   []holder
	files   []maskFile // of an Identity
}

// holder is an empty file in a mask that serves as a mount point.
type holder struct {
	dir  string   // a directory of the mask
	path []string // relative to dir; all but the last are directories that only the mask has
}

// seen is a cached result of look.
type seen struct {
	mode  uint32
	where string
}

// maskDir is a directory of a mask.
type maskDir struct {
	covers string          // directory whose metadata it gets
	gone   map[string]bool // whiteouts
	opaque bool
}

// at returns the directories that form p, topmost first; none if p is not a directory or cannot be reached.
func (m *masker) at(p string) ([]string, error) {
	if dirs, known := m.from[p]; known {
		return dirs, nil
	}
	dirs, err := m.stack.at(p)
	if unreachable(err) {
		dirs, err = nil, nil
	}
	if err == nil {
		m.from[p] = dirs
	}
	return dirs, err
}

func unreachable(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// look returns the type and the location of name in dir in the stack; 0 if it does not exist or cannot be reached.
func (m *masker) look(dir, name string) (mode uint32, where string, err error) {
	at := join(dir, name)
	if s, known := m.looked[at]; known {
		return s.mode, s.where, nil
	}
	defer func() {
		if err == nil {
			m.looked[at] = seen{mode, where}
		}
	}()
	dirs, err := m.at(dir)
	if err != nil {
		return 0, "", err
	}
	for _, d := range dirs {
		if !m.mayHave(d, name) {
			continue
		}
		var st unix.Stat_t
		switch err := unix.Lstat(join(d, name), &st); {
		case unreachable(err):
		case err != nil:
			return 0, "", fmt.Errorf("%s: %w", join(d, name), err)
		case st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0, rootspec.IsRemoval(join(d, name), &st):
			return 0, "", nil // in a tree without removals as files, too: a missing path is also hidden
		default:
			return st.Mode & unix.S_IFMT, join(d, name), nil
		}
	}
	return 0, "", nil
}

// mayHave reports whether the directory d on disk can have name. Listing it once is faster than a lookup for each of
// many missing names.
func (m *masker) mayHave(d, name string) bool {
	set, known := m.names[d]
	if !known {
		if list, err := listDir(d); err == nil {
			set = make(map[string]bool, len(list))
			for _, n := range list {
				set[n] = true
			}
		}
		m.names[d] = set
	}
	return set == nil || set[name] // nil: the directory cannot be listed
}

// hide hides the clean path p.
func (m *masker) hide(p string) error {
	if m.asked[p] {
		return nil
	}
	m.asked[p] = true
	p, all := strings.CutSuffix(p, "/*")
	suffix := ""
	if all {
		suffix = "/*"
	}
	cur, rest, links := "/", parts(p), 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			cur = path.Dir(cur)
			continue
		}
		at := join(cur, name)
		if reserved(at) && !m.all {
			return nil // no root shows the host's files there
		}
		mode, where, err := m.look(cur, name)
		if err != nil {
			return err
		}
		last := len(rest) == 0 && !all
		if last && links > 0 && rootspec.Within(p, at) {
			return nil // a link to its own parent directory
		}
		if last || mode == 0 {
			if err := m.gone(cur, name); err != nil {
				return err
			}
		}
		if mode == 0 || last {
			m.hidden[path.Join(append([]string{at}, rest...)...)+suffix] = true
		}
		switch {
		case mode == 0:
			return nil
		case mode == unix.S_IFLNK:
			if links++; links > maxMaskLinks {
				return nil // the sandbox cannot follow it either
			}
			to, err := os.Readlink(where)
			if err != nil {
				return err
			}
			if path.IsAbs(to) {
				cur = "/"
			}
			rest = append(parts(to), rest...)
		case last, mode != unix.S_IFDIR:
			return nil // done; or a file, below which nothing exists
		default:
			cur = at
		}
	}
	switch {
	case !all && rootspec.Within(p, cur):
		return nil // a link to its own parent directory
	case !all: // a link that ends in ".."
		m.hidden[cur] = true
		return m.gone(path.Dir(cur), path.Base(cur))
	case cur == "/":
		return fault.New(fault.Invalid, "it is the root directory")
	}
	d, err := m.dir(cur)
	if err != nil {
		return err
	}
	m.hidden[cur+suffix] = true
	if !d.opaque {
		d.opaque = true
		m.places++
	}
	return m.aliases(cur, "/*")
}

// parts returns the components of a path.
func parts(p string) []string {
	return slices.DeleteFunc(strings.Split(p, "/"), func(name string) bool { return name == "" || name == "." })
}

// gone adds a whiteout for name in dir.
func (m *masker) gone(dir, name string) error {
	d, err := m.dir(dir)
	if err != nil || d.gone[name] {
		return err
	}
	d.gone[name] = true
	m.places++
	return m.aliases(join(dir, name), "")
}

// hold adds an empty file at p, which is clean and hidden, and returns its path without links.
func (m *masker) hold(p string) (string, error) {
	cur, rest, links := "/", parts(p), 0
	for {
		if len(rest) == 0 {
			return "", fault.New(fault.Invalid, "%s is a directory", p)
		}
		name := rest[0]
		if name == ".." {
			cur, rest = path.Dir(cur), rest[1:]
			continue
		}
		if d := m.dirs[cur]; d != nil && (d.opaque || d.gone[name]) {
			break
		}
		if reserved(join(cur, name)) {
			return "", fault.New(fault.Invalid, "%s is managed by the sandbox",
				join(cur, name))
		}
		mode, where, err := m.look(cur, name)
		if err != nil {
			return "", err
		}
		switch mode {
		case unix.S_IFDIR:
			cur, rest = join(cur, name), rest[1:]
		case unix.S_IFLNK:
			if links++; links > maxMaskLinks {
				return "", fault.New(fault.Invalid, "the symbolic links in %s form a loop", p)
			}
			to, err := os.Readlink(where)
			if err != nil {
				return "", err
			}
			if path.IsAbs(to) {
				cur = "/"
			}
			rest = append(parts(to), rest[1:]...)
		default:
			return "", fault.New(fault.Conflict, "%s is not hidden", p) // created meanwhile
		}
	}
	if slices.Contains(rest, "..") {
		return "", fault.New(fault.Invalid, "%s is not reachable", p)
	}
	h := holder{cur, rest}
	at := path.Join(append([]string{cur}, rest...)...)
	for _, o := range m.holds {
		other := path.Join(append([]string{o.dir}, o.path...)...)
		switch {
		case other == at:
			return at, nil
		case rootspec.Within(at, other), rootspec.Within(other, at):
			return "", fault.New(fault.Invalid, "cannot place honeytokens at both %s and %s", at, other)
		}
	}
	m.holds = append(m.holds, h)
	return at, nil
}

// aliases hides p at the other mount points of its file system.
func (m *masker) aliases(p, all string) error {
	at, known := m.tree.place(p)
	if !known || !m.twice[at.dev] {
		return nil
	}
	for _, mt := range m.mounts {
		if deviceOf(mt) != at.dev || !strings.HasPrefix(mt.Root, "/") {
			continue
		}
		alias, want := mt.Mountpoint, place{deviceOf(mt), mt.Root} // the mount shows only hidden files
		if rootspec.Within(at.path, mt.Root) {
			alias, want = join(mt.Mountpoint,
				strings.TrimPrefix(strings.TrimPrefix(at.path, strings.TrimSuffix(mt.Root, "/")), "/")), at
		} else if !rootspec.Within(mt.Root, at.path) {
			continue
		}
		if got, ok := m.tree.place(alias); !ok || got != want || alias == p || alias == "/" {
			continue // another file system is mounted over it
		}
		suffix := all
		if want != at {
			suffix = ""
		}
		if err := m.hide(alias + suffix); err != nil {
			return err
		}
	}
	return nil
}

// dir returns the mask's directory for p, which is a directory of the stack. It creates the parent directories.
func (m *masker) dir(p string) (*maskDir, error) {
	if d := m.dirs[p]; d != nil {
		return d, nil
	}
	dirs, err := m.at(p)
	if err != nil {
		return nil, err
	}
	if len(dirs) == 0 {
		return nil, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist} // removed meanwhile
	}
	if p != "/" {
		if _, err := m.dir(path.Dir(p)); err != nil {
			return nil, err
		}
	}
	d := &maskDir{covers: dirs[0], gone: map[string]bool{}}
	m.dirs[p] = d
	return d, nil
}

// shown lists the directories of the mask, parents first, without those in hidden places.
func (m *masker) shown() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m.dirs)), func(p string) bool {
		for ; p != "/"; p = path.Dir(p) {
			if up := m.dirs[path.Dir(p)]; up.opaque || up.gone[path.Base(p)] {
				return true
			}
		}
		return false
	})
}

// name returns a digest of all properties of the mask except its times.
func (m *masker) name() (string, error) {
	sum := sha256.New()
	if m.byFiles {
		fmt.Fprintln(sum, "marks", rootspec.MarksFiles)
	}
	for _, p := range m.shown() {
		d := m.dirs[p]
		var st unix.Stat_t
		if err := unix.Lstat(d.covers, &st); err != nil {
			return "", &fs.PathError{Op: "inspect", Path: d.covers, Err: err}
		}
		mode := st.Mode & 0o7777
		if int(st.Uid) != unix.Geteuid() {
			mode |= access(d.covers) << 16 // see copyDirMeta
		}
		fmt.Fprintf(sum, "%q %o %d %d %t %q\n", p, mode, st.Uid, st.Gid, d.opaque, slices.Sorted(maps.Keys(d.gone)))
		for _, a := range xattrsOf(d.covers) {
			fmt.Fprintf(sum, "%q %q\n", a.name, a.value)
		}
	}
	for _, h := range m.holds {
		fmt.Fprintf(sum, "hold %q %q\n", h.dir, h.path)
	}
	for _, f := range m.files {
		fmt.Fprintln(sum, "file", f)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// write creates the mask at to, completely or not at all.
func (m *masker) write(home, to string) (err error) {
	if err := os.MkdirAll(home, 0o700); err != nil {
		return err
	}
	if m.byFiles {
		if err := unix.Setxattr(home, rootspec.MarksXattr, []byte(rootspec.MarksFiles), 0); err != nil {
			return &fs.PathError{Op: "mark", Path: home, Err: err}
		}
	}
	tmp, err := os.MkdirTemp(home, ".new-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	all := m.shown()
	for _, p := range all {
		at := join(tmp, strings.TrimPrefix(p, "/"))
		if err := os.Mkdir(at, 0o700); err != nil && p != "/" {
			return err
		}
		d := m.dirs[p]
		if d.opaque {
			if err := unix.Lsetxattr(at, "user.overlay.opaque", []byte("y"), 0); err != nil {
				return &fs.PathError{Op: "mark", Path: at, Err: err}
			}
			continue
		}
		for name := range d.gone {
			if slices.ContainsFunc(m.holds, func(h holder) bool { return h.dir == p && h.path[0] == name }) {
				continue
			}
			if err := m.whiteout(join(at, name)); err != nil {
				return &fs.PathError{Op: "create a whiteout at", Path: join(at, name), Err: err}
			}
		}
	}
	for _, h := range m.holds {
		if err := h.write(tmp, m.dirs[h.dir].covers); err != nil {
			return err
		}
	}
	for _, f := range m.files {
		if err := f.write(tmp); err != nil {
			return err
		}
	}
	for _, p := range slices.Backward(all) { // creating an entry changes the directory's time
		if err := copyDirMeta(m.dirs[p].covers, join(tmp, strings.TrimPrefix(p, "/"))); err != nil {
			return err
		}
	}
	err = os.Rename(tmp, to)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		return os.RemoveAll(tmp) // another call was faster
	}
	return err
}

// whiteout creates a whiteout.
func (m *masker) whiteout(at string) error {
	if !m.byFiles {
		return unix.Mknod(at, unix.S_IFCHR, 0)
	}
	f, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fsetxattr(int(f.Fd()), rootspec.RemovalXattr, []byte("y"), 0)
	if err == nil {
		err = f.Chmod(rootspec.RemovalMode)
	}
	return errors.Join(err, f.Close())
}

// write creates the file in the mask at tmp. Its directories get the time of the last change of covers, the directory
// that they are in.
func (h holder) write(tmp, covers string) error {
	var st unix.Stat_t
	if err := unix.Lstat(covers, &st); err != nil {
		return &fs.PathError{Op: "inspect", Path: covers, Err: err}
	}
	at := join(tmp, strings.TrimPrefix(h.dir, "/"))
	var made []string
	for _, name := range h.path[:len(h.path)-1] {
		at = join(at, name)
		err := os.Mkdir(at, 0o700)
		if errors.Is(err, fs.ErrExist) {
			continue // created for another holder
		}
		if err == nil {
			err = unix.Lsetxattr(at, "user.overlay.opaque", []byte("y"), 0)
		}
		if err == nil && int(st.Uid) != unix.Geteuid() && unix.Geteuid() == 0 {
			err = os.Lchown(at, int(st.Uid), int(st.Gid))
			if errors.Is(err, unix.EINVAL) { // the ID is not mapped: the directory remains the caller's
				err = nil
			}
		}
		if err != nil {
			return &fs.PathError{Op: "make", Path: at, Err: err}
		}
		made = append(made, at)
	}
	f, err := os.OpenFile(join(at, h.path[len(h.path)-1]), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	for _, d := range slices.Backward(made) {
		if err := os.Chtimes(d, time.Time{}, time.Unix(st.Mtim.Unix())); err != nil {
			return err
		}
	}
	return nil
}

// Holders lists the paths at which the mask in dir has an empty file, as a mount point in a live root. A mask has no
// other files, except for removals.
func Holders(dir string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && d.Type().IsRegular() {
			err = unix.Lstat(p, &st)
		}
		if err == nil && d.Type().IsRegular() && !rootspec.IsRemoval(p, &st) {
			out = append(out, "/"+strings.TrimPrefix(strings.TrimPrefix(p, dir), "/"))
		}
		return err
	})
	return out, fault.Wrap(err, "inspect the mask layer")
}

// hidden reports whether the mask in dir hides p, also if the mask has an empty file there.
func hidden(dir, p string) (bool, error) {
	in, end, err := layerAt(dir, p)
	return end && !in, err
}

// masked returns the plan without the paths that the stack's mask hides.
func (p HostPlan) masked(stack rootspec.Stack, keep func(part string) bool) (HostPlan, error) {
	if stack.Mask == "" {
		return p, nil
	}
	var errs []error
	gone := func(path string) bool {
		is, err := hidden(stack.Mask, path)
		errs = append(errs, err)
		return is
	}
	p.Parts = slices.DeleteFunc(p.Parts, func(q HostPart) bool { return !keep(q.Path) && gone(q.Path) })
	p.Skeleton = slices.DeleteFunc(p.Skeleton, func(e rootspec.Entry) bool { return gone(e.Path) })
	p.Files = slices.DeleteFunc(p.Files, func(f rootspec.File) bool { return gone(f.Target) })
	return p, errors.Join(errs...)
}

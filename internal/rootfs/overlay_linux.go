package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/removal"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/undo"
)

// overlay keeps a generation as
//
//	upper/p0 …   the upper directory of each part
//	work/p0 …    its work directory, with the part's path as an attribute
//	places0 …    the base of a part that does not use the host's directory; always recreated
//	left         the omitted host paths (JSON), if there are any
//
// A part keeps its directory during the lifetime of the generation.
type overlay struct{ deps Deps }

func (o *overlay) Name() string    { return "overlay" }
func (o *overlay) Adoptable() bool { return true }
func (o *overlay) Plain() bool     { return false }

// Present implements Driver. The root directory of an upper becomes the root directory of the part, so a new one gets
// mode, owner, time and attributes of the directory that it covers: mounting must change nothing.
func (o *overlay) Present(ctx context.Context, live Live) (rootspec.Spec, error) {
	if live.Disk == 0 {
		return o.present(ctx, live)
	}
	p, err := o.claim(live)
	if err != nil {
		return rootspec.Spec{}, fault.Wrap(err, "limit the disk of the live root")
	}
	spec, err := o.present(ctx, live)
	if err == nil {
		err = belongs(live.Dir, p)
	}
	return spec, errors.Join(err, o.hold(live, p))
}

func (o *overlay) present(ctx context.Context, live Live) (spec rootspec.Spec, err error) {
	rec, err := readRecord(live.Dir)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err != nil && !fresh {
		return rootspec.Spec{}, fault.Wrap(err, "inspect the live root")
	}
	for _, l := range live.Stack.Layers {
		// A mask and an identity are made for the file system that the home is on now.
		if l != live.Stack.Mask && l != live.Stack.Identity && rootspec.Marks(l) == rootspec.MarksFiles {
			return rootspec.Spec{}, fault.New(fault.Unsupported,
				"cannot mount layer %s: it was made on a file system without whiteouts", l).
				WithHint("use --driver copy")
		}
	}
	plan, err := o.plan(live.Stack, rec)
	if err == nil {
		plan, err = plan.masked(live.Stack, func(part string) bool { _, known := rec.find(part); return known })
	}
	if err != nil {
		return rootspec.Spec{}, err
	}
	plan = plan.identified(live.Stack)
	var u undo.Stack
	defer u.Run(&err)
	if fresh {
		u.Push(func() error { return removal.Tree(context.WithoutCancel(ctx), live.Dir) })
		if err := o.makeDirs(live.Dir); err != nil {
			return rootspec.Spec{}, err
		}
	}
	spec = rootspec.Spec{Skeleton: plan.Skeleton, Files: plan.Files, Hide: plan.Hide}
	stack := newStackReader(live.Stack)
	for i, part := range plan.Parts {
		lowers, err := stack.at(part.Path)
		if err != nil {
			return rootspec.Spec{}, fault.Wrap(err, "layers of %s", part.Path)
		}
		if n := len(lowers) - 1; part.Empty && n >= 0 && lowers[n] == part.Path {
			if lowers[n], err = plan.places(part.Path, filepath.Join(live.Dir, "places"+strconv.Itoa(i))); err != nil {
				return rootspec.Spec{}, fault.Wrap(err, "prepare %s of the root", part.Path)
			}
		}
		name, known := rec.find(part.Path)
		if len(lowers) == 0 && !known {
			continue // a layer replaced the part
		}
		if !known {
			if name, err = rec.add(live.Dir, part.Path, lowers[0]); err != nil {
				return rootspec.Spec{}, fault.Wrap(err, "prepare %s of the root", part.Path)
			}
			if live.Stack.Host && !o.deps.Root {
				if err := openScratch(filepath.Join(live.Dir, "upper", name), part.Path); err != nil {
					return rootspec.Spec{}, fault.Wrap(err, "prepare %s of the root", part.Path)
				}
			}
		}
		if len(lowers) == 0 {
			return rootspec.Spec{}, gone(part.Path)
		}
		spec.Overlays = append(spec.Overlays, rootspec.Overlay{
			Target: part.Path, Lowers: lowers, Wrap: part.Wrap,
			Upper: filepath.Join(live.Dir, "upper", name),
			Work:  filepath.Join(live.Dir, "work", name),
		})
	}
	spec.Hide = within(spec.Hide, spec.Overlays)
	if err := writeLeft(live.Dir, plan.Left); err != nil {
		return rootspec.Spec{}, err
	}
	if len(spec.Overlays) == 0 {
		return rootspec.Spec{}, fault.New(fault.Invalid, "the root of the sandbox is empty")
	}
	u.Release()
	return spec, nil
}

// scratchDirs are directories that all users may write to although root owns them.
var scratchDirs = []string{"/var/tmp"}

// openScratch creates the scratch directories of a part in its upper directory. Otherwise an unprivileged user could
// not write there: overlayfs copies up a directory with its owner, and the ID of root is not mapped (EOVERFLOW).
func openScratch(upper, part string) error {
	for _, dir := range scratchDirs {
		rel, err := filepath.Rel(part, dir)
		if err != nil || rel != filepath.Base(dir) {
			continue // in another part, or a part itself
		}
		fi, err := os.Lstat(dir)
		if err != nil || !fi.IsDir() || !scratch(fi.Mode()) {
			continue // unusual: its own permissions apply
		}
		to := filepath.Join(upper, rel)
		if err := os.Mkdir(to, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if err := copyDirMeta(dir, to); err != nil {
			return err
		}
		// Creating the directory changed the time of the part's own directory.
		return copyDirMeta(part, upper)
	}
	return nil
}

// places creates a directory at to with the metadata of part, and with the plan's entries below part: links, and
// mount points for other parts and for files.
func (p HostPlan) places(part, to string) (string, error) {
	if err := os.RemoveAll(to); err != nil { // has only what a previous call created
		return "", err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return "", err
	}
	below := func(path string) (string, bool) {
		rel, ok := strings.CutPrefix(path, part+"/")
		return filepath.Join(to, rel), ok
	}
	for _, e := range p.Skeleton { // parents first
		at, ok := below(e.Path)
		if !ok {
			continue
		}
		var err error
		if e.Link != "" {
			err = os.Symlink(e.Link, at)
		} else {
			err = os.Mkdir(at, 0o755)
		}
		if err != nil {
			return "", err
		}
	}
	for _, q := range p.Parts {
		if at, ok := below(q.Path); ok {
			if err := os.Mkdir(at, 0o755); err != nil {
				return "", err
			}
		}
	}
	for _, f := range p.Files {
		if at, ok := below(f.Target); ok {
			if err := os.WriteFile(at, nil, 0o600); err != nil {
				return "", err
			}
		}
	}
	return to, copyDirMeta(part, to)
}

// plan computes the parts of the stack. The parts of an existing generation remain parts: its uppers hold
// changes.
func (o *overlay) plan(stack rootspec.Stack, rec record) (HostPlan, error) {
	if !stack.Host {
		return HostPlan{Parts: []HostPart{{Path: "/"}}}, nil
	}
	h, err := o.deps.Host()
	if err != nil {
		return HostPlan{}, err
	}
	for _, r := range rec.parts {
		h.Keep = append(h.Keep, r.path)
	}
	h.Covered = covered(stack)
	p := HostParts(h)
	for _, r := range rec.parts {
		if slices.ContainsFunc(p.Parts, func(q HostPart) bool { return q.Path == r.path }) {
			continue
		}
		if !h.Root {
			return HostPlan{}, gone(r.path)
		}
		// Unmounted on the host: the directory below the mount is visible.
		q := newPlanner(h)
		q.part(r.path)
		p.Parts = append(p.Parts, q.plan.Parts...)
		p.Hide = append(p.Hide, q.plan.Hide...)
	}
	slices.SortFunc(p.Parts, func(x, y HostPart) int { return strings.Compare(x.Path, y.Path) })
	return p, nil
}

// covered returns the function Host.Covered for the layers of a stack. It is called only for paths above mounts of
// the host. An unreadable layer is reported elsewhere.
func covered(stack rootspec.Stack) func(string) bool {
	return func(p string) bool {
		in := false
		for _, l := range stack.Layers {
			is, end, err := layerAt(l, p)
			if err != nil {
				return false
			}
			if in = in || is; end {
				return in
			}
		}
		return false
	}
}

// gone is the error for an upper whose directory on the host has disappeared. Its changes can still be captured, and
// a new generation has other parts.
func gone(path string) error {
	return fault.New(fault.Conflict, "the mount at %s on the host has changed under the running sandbox", path).
		WithHint("rewind to its newest snapshot: coppice rewind NAME HEAD")
}

// within removes the hidden paths that are in no overlay.
func within(hide []string, os []rootspec.Overlay) []string {
	return slices.DeleteFunc(hide, func(h string) bool {
		return !slices.ContainsFunc(os, func(o rootspec.Overlay) bool { return rootspec.Within(h, o.Target) })
	})
}

// makeDirs creates the directories of a generation; work is the last one.
func (o *overlay) makeDirs(dir string) error {
	for _, d := range []string{".", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fault.Wrap(err, "prepare the generation directory")
		}
		if d != "." {
			continue
		}
		if err := canBeUpper(dir); err != nil {
			return err
		}
	}
	return nil
}

// canBeUpper refuses file systems that overlayfs cannot write to, with a reason, which the kernel would not give.
func canBeUpper(dir string) error {
	const hint = "set COPPICE_HOME to a directory on ext4, xfs, btrfs or a tmpfs (in a container: a volume), or use " +
		"--driver copy"
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fault.Wrap(err, "inspect the file system of %s", dir)
	}
	if name := noUpper[int64(st.Type)]; name != "" { //nolint:unconvert // int32 on some
		return fault.New(fault.Unsupported, "driver overlay cannot write to a directory on %s: %s", name, dir).WithHint(hint)
	}
	if err := unix.Setxattr(dir, "user.overlay.coppice", []byte("y"), 0); err != nil {
		if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) {
			return fault.New(fault.Unsupported, "the file system of %s does not support user attributes", dir).
				WithHint(hint).Because(err)
		}
		return fault.Wrap(err, "set an attribute on %s", dir)
	}
	return fault.Wrap(unix.Removexattr(dir, "user.overlay.coppice"), "remove an attribute of %s", dir)
}

// noUpper has the magic numbers (statfs(2)) of file systems that cannot be an upper: overlayfs on overlayfs, remote
// file systems, and ones without whiteouts.
var noUpper = map[int64]string{
	unix.OVERLAYFS_SUPER_MAGIC: "overlayfs",
	unix.NFS_SUPER_MAGIC:       "NFS",
	unix.MSDOS_SUPER_MAGIC:     "FAT",
	unix.V9FS_MAGIC:            "9p",
	unix.SMB2_SUPER_MAGIC:      "SMB",
	unix.CIFS_SUPER_MAGIC:      "SMB",
	unix.FUSE_SUPER_MAGIC:      "FUSE",
	unix.ECRYPTFS_SUPER_MAGIC:  "eCryptfs",
}

// Parts implements Driver.
func (o *overlay) Parts(live Live) ([]rootspec.Part, error) {
	rec, err := readRecord(live.Dir)
	if err != nil {
		return nil, fault.Wrap(err, "parts of the live root")
	}
	parts := make([]rootspec.Part, len(rec.parts))
	for i, p := range rec.parts {
		parts[i] = rootspec.Part{Dir: filepath.Join(live.Dir, "upper", p.dir), Path: p.path}
	}
	return parts, nil
}

// LeftOut implements Reporter.
func (o *overlay) LeftOut(live Live) []LeftOut { return readLeft(live.Dir) }

// Remove implements Driver.
func (o *overlay) Remove(ctx context.Context, dir string) error {
	return removal.Tree(ctx, dir)
}

// stackReader finds the directories of one stack that form each part.
type stackReader struct {
	rootspec.Stack
	tops []*top // by index of Layers; nil: not read yet
}

// top caches the root directory of a layer: nearly all layers do not have a given part, and the check then needs no
// system call.
type top struct {
	names  map[string]bool
	opaque bool
}

func newStackReader(s rootspec.Stack) *stackReader {
	return &stackReader{Stack: s, tops: make([]*top, len(s.Layers))}
}

func (s *stackReader) top(i int) (*top, error) {
	if s.tops[i] != nil {
		return s.tops[i], nil
	}
	names, err := listDir(s.Layers[i])
	if err != nil {
		return nil, err
	}
	t := &top{names: make(map[string]bool, len(names)), opaque: isOpaque(s.Layers[i])}
	for _, n := range names {
		t.names[n] = true
	}
	s.tops[i] = t
	return t, nil
}

// listDir returns the names in a directory with few system calls: os.Open would also register the descriptor with the
// poller, for every layer at every start.
func listDir(dir string) ([]string, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	r := dirfd.NewReader()
	defer r.Close()
	r.StartNew(fd)
	names, err := r.Names()
	if err != nil {
		return nil, &fs.PathError{Op: "list", Path: dir, Err: err}
	}
	return names, nil
}

// at returns the directories of the stack that form the directory p (absolute, inside), topmost first, as overlayfs
// would merge them if the whole stack were one mount: a layer in which p or a parent of it is opaque, removed, or not
// a directory ends the list. Sandboxes wrote the layers, so links in them are not followed.
func (s *stackReader) at(p string) ([]string, error) {
	var dirs []string
	first, _, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
	for i, layer := range s.Layers {
		if first != "" {
			t, err := s.top(i)
			if err != nil {
				return nil, err
			}
			if !t.names[first] {
				if t.opaque {
					return dirs, nil
				}
				continue
			}
		}
		in, end, err := layerAt(layer, p)
		if err != nil {
			return nil, err
		}
		if in {
			dirs = append(dirs, join(layer, strings.TrimPrefix(p, "/")))
		}
		if end {
			return dirs, nil
		}
	}
	if s.Host {
		switch fi, err := os.Lstat(p); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case fi.IsDir():
			dirs = append(dirs, p)
		}
	}
	return dirs, nil
}

// LayerAt reports whether the tree of a layer has the directory p, and whether it hides everything at p in the layers
// below it. If p is not a directory, in is false.
func LayerAt(layer, p string) (in, end bool, err error) { return layerAt(layer, p) }

// layerAt reports whether layer has the directory p, and whether it hides everything at p in the layers below it.
func layerAt(layer, p string) (in, end bool, err error) {
	cur := layer
	rest := strings.TrimPrefix(p, "/")
	for {
		var st unix.Stat_t
		switch err := unix.Lstat(cur, &st); {
		case errors.Is(err, unix.ENOENT) && cur != layer:
			return false, end, nil
		case err != nil:
			return false, false, fmt.Errorf("%s: %w", cur, err)
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return false, true, nil
		}
		if isOpaque(cur) {
			end = true
		}
		if rest == "" {
			return true, end, nil
		}
		name, more, _ := strings.Cut(rest, "/")
		cur, rest = cur+"/"+name, more
	}
}

func isOpaque(dir string) bool {
	var v [2]byte
	n, err := unix.Lgetxattr(dir, "user.overlay.opaque", v[:])
	return err == nil && n == 1 && v[0] == 'y'
}

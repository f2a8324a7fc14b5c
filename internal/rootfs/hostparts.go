package rootfs

import (
	"cmp"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/moby/sys/mountinfo"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Host provides the state of the host to HostParts.
type Host struct {
	Mounts []*mountinfo.Info
	Root   bool   // the caller is real root
	Store  string // canonical path of COPPICE_HOME
	// Lstat, ReadDir and Readlink access the host without following links.
	Lstat    func(path string) (fs.FileMode, error)
	ReadDir  func(path string) ([]string, error)
	Readlink func(path string) (string, error)
	// Access returns the caller's access to a path: bits 4, 2 and 1 for reading, writing, entering. It is not called
	// for real root.
	Access func(path string) uint32
	// Keep lists parts that an unprivileged user's root had before. They remain parts while nothing is mounted below
	// them.
	Keep []string
	// Covered reports whether the layers above the host have their own opaque directory at a path, through which the
	// host is not visible: such a directory is a part even if something is mounted below it on the host. If nil,
	// there is none.
	Covered func(path string) bool
}

// HostPlan describes the host as the base of a live root.
type HostPlan struct {
	Parts    []HostPart // parents before children
	Skeleton []rootspec.Entry
	Files    []rootspec.File
	Hide     []string
	Left     []LeftOut
}

// HostPart is a directory of the host that becomes the base of an overlay.
type HostPart struct {
	Path  string
	Wrap  bool // the store is below it, on the same file system
	Empty bool // its base is a directory with mount points for the entries below it, not the host's directory
}

// HostParts determines how the host's root is assembled as the base of a live root. It depends only on h.
//
// For real root: one part for "/", and one for each mount below it with data, since an overlay does not show mounts
// in its lower directories. For an unprivileged user: one part for each directory of "/". If something is mounted
// below a directory, the directory becomes part of the skeleton and its entries are examined in turn, because a user
// namespace may not use a directory with locked mounts below it as a layer (has_locked_children in fs/namespace.c:
// EINVAL). The skeleton is not writable, but directories such as /var/tmp must be: such a directory is a part without
// the host's content, and its entries are parts in it.
//
// rootspec.Reserved, file systems of the kernel and the store are never shown.
func HostParts(h Host) HostPlan {
	b := newPlanner(h)
	if h.Root {
		b.asRoot()
	} else {
		b.asUser()
	}
	slices.SortFunc(b.plan.Parts, func(x, y HostPart) int { return cmp.Compare(x.Path, y.Path) })
	slices.SortFunc(b.plan.Skeleton, func(x, y rootspec.Entry) int { return cmp.Compare(x.Path, y.Path) })
	slices.SortFunc(b.plan.Files, func(x, y rootspec.File) int { return cmp.Compare(x.Target, y.Target) })
	slices.SortFunc(b.plan.Left, func(x, y LeftOut) int { return cmp.Compare(x.Path, y.Path) })
	slices.Sort(b.plan.Hide)
	return b.plan
}

type planner struct {
	Host
	tree   mountTree
	store  place
	stored bool // store is known
	plan   HostPlan
}

func newPlanner(h Host) *planner {
	b := &planner{Host: h, tree: newMountTree(h.Mounts)}
	b.store, b.stored = b.tree.place(h.Store)
	return b
}

func (b *planner) leave(p, why string) {
	b.plan.Left = append(b.plan.Left, LeftOut{Path: p, Why: why})
}

// part makes the directory p the base of an overlay.
func (b *planner) part(p string) {
	hp := HostPart{Path: p}
	at, known := b.tree.place(p)
	store := b.store
	if !known || !b.stored {
		// The mounts do not show the location of p (in a chroot), so its name decides. An unnecessary wrap is
		// harmless.
		at, store = place{path: p}, place{path: b.Store}
	}
	switch {
	case at.dev != store.dev:
	case rootspec.Within(at.path, store.path):
		if !rootspec.Within(p, b.Store) {
			b.leave(p, "it exposes a part of the store")
		}
		return
	case rootspec.Within(store.path, at.path):
		hp.Wrap = true
		rel := strings.TrimPrefix(strings.TrimPrefix(store.path, strings.TrimSuffix(at.path, "/")), "/")
		b.plan.Hide = append(b.plan.Hide, join(p, rel))
	}
	b.plan.Parts = append(b.plan.Parts, hp)
}

func (b *planner) asRoot() {
	b.part("/")
	out := map[int]bool{} // omitted mounts
	ms := slices.Clone(b.Mounts)
	slices.SortStableFunc(ms, func(x, y *mountinfo.Info) int { return cmp.Compare(x.Mountpoint, y.Mountpoint) })
	for _, m := range ms {
		switch vis := b.tree.at(m.Mountpoint); {
		case m.Mountpoint == "/", vis == nil, vis.ID != m.ID:
			continue // the root itself, or covered by another mount
		case reserved(m.Mountpoint):
			continue
		case rootspec.Within(m.Mountpoint, b.Store):
			continue
		}
		if why := b.refuse(m); why != "" {
			out[m.ID] = true
			if why != kernelFS {
				b.leave(m.Mountpoint, why)
			}
			continue
		}
		if out[m.Parent] {
			out[m.ID] = true
			b.leave(m.Mountpoint, "it is mounted on something that is left out")
			continue
		}
		mode, err := b.Lstat(m.Mountpoint)
		switch {
		case err != nil:
			out[m.ID] = true
			b.leave(m.Mountpoint, "it cannot be read: "+reason(err))
		case mode.IsDir():
			b.part(m.Mountpoint)
		case mode.IsRegular():
			b.file(m.Mountpoint)
		default:
			b.leave(m.Mountpoint, "it is not a directory or plain file")
		}
	}
}

func (b *planner) asUser() {
	names, err := b.ReadDir("/")
	if err != nil {
		b.leave("/", "it cannot be listed: "+reason(err))
		return
	}
	for _, n := range names {
		b.userEntry("/" + n)
	}
}

// userEntry plans one entry of a directory in the skeleton.
func (b *planner) userEntry(p string) {
	if reserved(p) || rootspec.Within(p, b.Store) {
		return
	}
	if !utf8.ValidString(p) {
		b.leave(p, "its name is not UTF-8")
		return
	}
	mode, err := b.Lstat(p)
	switch {
	case err != nil:
		b.leave(p, "it cannot be read: "+reason(err))
	case mode.IsDir():
		b.userDir(p, mode)
	case mode.IsRegular():
		b.file(p)
	case mode&fs.ModeSymlink != 0:
		link, err := b.Readlink(p)
		if err != nil || !utf8.ValidString(link) {
			b.leave(p, "the link cannot be read")
			return
		}
		b.plan.Skeleton = append(b.plan.Skeleton, rootspec.Entry{Path: p, Link: link})
	default:
		b.leave(p, "it is not a directory, plain file or link")
	}
}

func (b *planner) userDir(p string, mode fs.FileMode) {
	if m := b.tree.at(p); m != nil && m.Mountpoint == p {
		if why := b.refuse(m); why != "" {
			b.skeletonDir(p, mode)
			if why != kernelFS {
				b.leave(p, why)
			}
			return
		}
	}
	if b.mountBelow(p) && b.Covered != nil && b.Covered(p) {
		b.part(p)
		return
	}
	if !b.mountBelow(p) {
		if slices.Contains(b.Keep, p) || !b.barren(p) {
			b.part(p)
			return
		}
		b.skeletonDir(p, mode)
		return
	}
	names, err := b.ReadDir(p)
	if scratch(mode) {
		b.plan.Parts = append(b.plan.Parts, HostPart{Path: p, Empty: true})
		if len(names) > mostScratch { // other users may create more
			b.leave(p, "it contains mount points and too many entries to combine: it starts empty")
			return
		}
	} else {
		b.skeletonDir(p, mode)
	}
	if err != nil {
		b.leave(p, "it contains mount points and cannot be listed: "+reason(err))
		return
	}
	for _, n := range names {
		b.userEntry(join(p, n))
	}
}

// mostScratch is the maximum number of entries of a scratch directory that are planned.
const mostScratch = 256

// scratch reports whether a directory's mode permits all users to write to it, so that no program relies on its
// content.
func scratch(mode fs.FileMode) bool {
	return mode&fs.ModeSticky != 0 && mode.Perm()&0o002 != 0
}

// barren reports whether the user can neither see nor create anything in the directory p, so that an empty directory
// in the skeleton is equivalent to a mount.
func (b *planner) barren(p string) bool {
	may := b.Access(p)
	if may&1 == 0 {
		return true
	}
	if may&2 != 0 || may&4 == 0 {
		return false
	}
	names, err := b.ReadDir(p)
	return err == nil && len(names) == 0
}

// skeletonDir adds a directory to the skeleton. The user, who owns it, gets no more access than to the host's
// directory.
func (b *planner) skeletonDir(p string, mode fs.FileMode) {
	b.plan.Skeleton = append(b.plan.Skeleton, rootspec.Entry{Path: p, Mode: unixMode(mode)&^0o700 | b.Access(p)<<6})
}

// mountBelow reports whether any mount is below p, including covered mounts, which are locked as well.
func (b *planner) mountBelow(p string) bool {
	return slices.ContainsFunc(b.Mounts,
		func(m *mountinfo.Info) bool { return m.Mountpoint != p && rootspec.Within(m.Mountpoint, p) })
}

func (b *planner) file(p string) {
	if !utf8.ValidString(p) {
		b.leave(p, "its name is not UTF-8")
		return
	}
	b.plan.Files = append(b.plan.Files, rootspec.File{Source: p, Target: p})
}

func reserved(p string) bool {
	return slices.ContainsFunc(rootspec.Reserved, func(r string) bool { return rootspec.Within(p, r) })
}

func reason(err error) string {
	var pe *fs.PathError
	if e, ok := err.(*fs.PathError); ok { //nolint:errorlint // the outermost alone
		pe = e
		return pe.Err.Error()
	}
	return err.Error()
}

// unixMode returns permission, set-id and sticky bits as chmod(2) takes them.
func unixMode(m fs.FileMode) uint32 {
	u := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		u |= 0o4000
	}
	if m&fs.ModeSetgid != 0 {
		u |= 0o2000
	}
	if m&fs.ModeSticky != 0 {
		u |= 0o1000
	}
	return u
}

// kernelFS is the reason that is not reported: no user expects /proc of the host.
const kernelFS = "it is a file system of the kernel"

// refused maps types of file systems to the reason why their mounts are not part of a root. Other types have data and
// can be a lower layer.
var refused = map[string]string{
	"autofs":          "it is mounted on demand",
	"binfmt_misc":     kernelFS,
	"bpf":             kernelFS,
	"cgroup":          kernelFS,
	"cgroup2":         kernelFS,
	"configfs":        kernelFS,
	"debugfs":         kernelFS,
	"devpts":          kernelFS,
	"devtmpfs":        kernelFS,
	"efivarfs":        kernelFS,
	"fuse.gvfsd-fuse": kernelFS,
	"fuse.lxcfs":      kernelFS,
	"fuse.portal":     kernelFS,
	"fusectl":         kernelFS,
	"hugetlbfs":       kernelFS,
	"mqueue":          kernelFS,
	"nfsd":            kernelFS,
	"nsfs":            kernelFS,
	"proc":            kernelFS,
	"pstore":          kernelFS,
	"ramfs":           "it is in memory and may hold secrets",
	"resctrl":         kernelFS,
	"rpc_pipefs":      kernelFS,
	"securityfs":      kernelFS,
	"selinuxfs":       kernelFS,
	"smackfs":         kernelFS,
	"sysfs":           kernelFS,
	"tracefs":         kernelFS,
	"fuse.snapfuse":   "it is a snap",
	"vfat":            "file systems that ignore case cannot be a layer",
	"msdos":           "file systems that ignore case cannot be a layer",
	"exfat":           "file systems that ignore case cannot be a layer",
	"ntfs":            "file systems that ignore case cannot be a layer",
	"ntfs3":           "file systems that ignore case cannot be a layer",
	"fuseblk":         "file systems that ignore case cannot be a layer",
	"hfs":             "file systems that ignore case cannot be a layer",
	"hfsplus":         "file systems that ignore case cannot be a layer",
	"cifs":            "network file systems that may ignore case cannot be a layer",
	"smb3":            "network file systems that may ignore case cannot be a layer",
}

// refuse returns why the mount m, which is not the root, is not a part; "" if it is. The kernel refuses lowers whose
// names are not compared byte by byte (ovl_dentry_weird, fs/overlayfs/util.c).
func (b *planner) refuse(m *mountinfo.Info) string {
	if why := refused[m.FSType]; why != "" {
		return why
	}
	if !utf8.ValidString(m.Mountpoint) {
		return "its name is not UTF-8"
	}
	switch m.FSType {
	case "overlay", "aufs", "fuse.fuse-overlayfs":
		return "it is the root of a container"
	case "squashfs":
		if d := path.Dir(path.Dir(m.Mountpoint)); d == "/snap" || d == "/var/lib/snapd/snap" {
			return "it is a snap"
		}
	}
	return ""
}

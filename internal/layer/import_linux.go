package layer

import (
	"context"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/removal"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// ImportOptions selects what ImportDir imports. The zero value imports everything.
type ImportOptions struct {
	// OneFileSystem leaves mount points below the source empty.
	OneFileSystem bool
	// Skip lists absolute host paths that are left out.
	Skip []string
	// Empty lists absolute host paths of directories that are imported without their content.
	Empty []string
	// Progress is called a few times a second, from one goroutine; may be nil.
	Progress func(Progress)
}

// Progress is the progress of an import.
type Progress struct {
	Entries int64
	Bytes   int64 // of content written
	Total   int64 // expected Bytes; 0: unknown
}

// Report describes the result of an import, and the entries that it could not import.
type Report struct {
	Entries    int64
	Bytes      int64
	Unreadable []string // absolute paths that could not be read; sorted
	Changed    []string // entries left out or made harmless, each with its reason
	Index      *Index   // of ImportDir: the state of the source, for Refresh
}

// hostRacy is the age up to which a change of a file before an import may hide a later one from its stat: the
// host's processes are not paused, and pages that are mapped shared change without a trace until they are
// written back, which the kernel does within half a minute.
const hostRacy = time.Minute

// ImportDir makes layer id a copy of the directory src. What cannot be read is listed in the report, never
// skipped silently. After a failure nothing is left behind.
func (s *Store) ImportDir(
	ctx context.Context, id timeline.LayerID, src string, opts ImportOptions,
) (rep Report, err error) {
	src, c, err := s.importer(ctx, id, src, opts)
	if err != nil {
		return rep, fault.Wrap(err, "import %s", src)
	}
	b, err := s.begin(ctx, id)
	if err != nil {
		return rep, fault.Wrap(err, "import %s", src)
	}
	defer b.undo.Run(&err)
	c.linkDir = b.links
	v := rawView(src, true)
	root := rootEnt{path: src}
	stop := c.tick(opts.Progress)
	root.node, err = s.materialise(v, c, b.fs)
	stop()
	if err == nil {
		err = c.rootMeta(v, b.fs, &root.self)
	}
	if err == nil {
		err = b.finish(ctx)
	}
	if err != nil {
		return rep, fault.Wrap(err, "import %s", src)
	}
	return c.report(root), nil
}

// importer checks the arguments of an import and makes its copier. It returns src with links resolved.
func (s *Store) importer(
	ctx context.Context, id timeline.LayerID, src string, opts ImportOptions,
) (string, *copier, error) {
	if !validID(id) {
		return src, nil, fault.New(fault.Invalid, "invalid layer id %q", id)
	}
	abs, err := filepath.Abs(src)
	if err != nil {
		return src, nil, err
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return src, nil, err
	}
	var st unix.Stat_t
	if err := unix.Stat(real, &st); err != nil {
		return real, nil, err
	}
	if !dirfd.IsDir(&st) {
		return real, nil, fault.New(fault.Invalid, "%s is not a directory", real)
	}
	c := &copier{putter: putter{ctx: ctx}, tolerate: true, indexed: true, racyFrom: time.Now().Add(-hostRacy).UnixNano()}
	c.s, c.fromRaw, c.lenient = s, true, true
	c.hire(copyWorkers())
	if opts.OneFileSystem {
		c.dev = st.Dev
	}
	c.skip, c.empty = matcher(real, append(slices.Clone(opts.Skip), filepath.Dir(s.dir))), matcher(real, opts.Empty)
	return real, c, nil
}

func (c *copier) report(root rootEnt) Report {
	rep := Report{Entries: c.entries.Load(), Bytes: c.bytes.Load(), Changed: c.changed,
		Index: &Index{roots: []rootEnt{root}}}
	for _, p := range c.unreadable {
		rep.Unreadable = append(rep.Unreadable, path.Join(root.path, p))
	}
	slices.Sort(rep.Unreadable)
	slices.Sort(rep.Changed)
	return rep
}

// matcher returns a function that reports whether a path of the view is one of the given host paths; nil if
// none can be.
func matcher(src string, paths []string) func(string) bool {
	set := map[string]bool{}
	for _, p := range paths {
		if rel, ok := below(src, p); ok && rel != "" {
			set["/"+rel] = true
		}
	}
	if len(set) == 0 {
		return nil
	}
	return func(p string) bool { return set[p] }
}

// tick reports progress until stop is called.
func (c *copier) tick(fn func(Progress)) (stop func()) {
	if fn == nil {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	tell := func() { fn(Progress{Entries: c.entries.Load(), Bytes: c.bytes.Load()}) }
	go func() {
		defer close(ended)
		t := time.NewTicker(100 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-done:
				tell()
				return
			case <-t.C:
				tell()
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// RemoveTree deletes the directory at path and everything in it, at any depth, without following links; see
// removal.Tree. A missing directory is not an error.
func (s *Store) RemoveTree(ctx context.Context, p string) error {
	return removal.Tree(ctx, p)
}

// Usage returns the disk space that a layer's tree takes, in bytes. Files that other layers share count in
// each.
func (s *Store) Usage(ctx context.Context, id timeline.LayerID) (int64, error) {
	if !validID(id) {
		return 0, fault.New(fault.Invalid, "invalid layer id %q", id)
	}
	return s.TreeUsage(ctx, strings.TrimSuffix(s.Dir(id), "/fs"))
}

// TreeUsage returns the disk space of a directory and everything in it, in bytes; a file with several names
// counts once. Processes may change it meanwhile: what disappears during the walk does not count.
func (s *Store) TreeUsage(ctx context.Context, dir string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return 0, fault.Wrap(err, "measure %s", dir)
	}
	total := st.Blocks * 512
	seen := map[devIno]bool{}
	v := rawView(dir, false)
	v.live = true
	err := v.walk(ctx, func(m *mdir, f *found) error {
		if f.st.Nlink > 1 && !dirfd.IsDir(&f.st) {
			key := devIno{f.st.Dev, f.st.Ino}
			if seen[key] {
				return nil
			}
			seen[key] = true
		}
		total += f.st.Blocks * 512
		return nil
	})
	return total, fault.Wrap(err, "measure %s", dir)
}

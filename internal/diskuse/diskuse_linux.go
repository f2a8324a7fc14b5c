package diskuse

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Config configures a Meter. All fields are required.
type Config struct {
	Home string // COPPICE_HOME, absolute
	DB   *meta.DB
	// Unused returns the layers that a garbage collection would delete.
	Unused func(ctx context.Context) ([]timeline.LayerID, error)
}

// Meter measures a home. Create one with New; it is safe for concurrent use.
type Meter struct {
	config Config // never changed
}

// New returns the Meter of a home.
func New(c Config) *Meter { return &Meter{config: c} }

// kinds are the kinds of parts in an answer, in order.
var kinds = [...]string{
	wire.DiskBases, wire.DiskLayers, wire.DiskLive, wire.DiskMemory, wire.DiskCaches, wire.DiskAudit, wire.DiskRemoved,
	wire.DiskLost, wire.DiskOther,
}

// DiskUse measures the home, until ctx is cancelled. It calls progress from this goroutine, with the number of files
// measured so far.
func (m *Meter) DiskUse(ctx context.Context, progress func(wire.Progress)) (wire.DiskUse, error) {
	known, err := m.known(ctx)
	if err != nil {
		return wire.DiskUse{}, err
	}
	t := &tally{known: known, parts: map[string]*part{}, live: map[string]*sum{}}
	for _, k := range kinds {
		t.parts[k] = &part{}
	}
	t.parts[wire.DiskRemoved].sum.links = map[inode]*linked{}
	t.walk = walk{ctx: ctx, mostNames: limit.DiskUseNames, mostLinks: limit.DiskUseLinks, tell: func(files int) {
		progress(wire.Progress{Phase: "measure", Unit: "files", Done: int64(files)})
	}}
	home, err := dirfd.OpenDir(unix.AT_FDCWD, m.config.Home)
	if err != nil {
		return wire.DiskUse{}, fault.Wrap(err, "open the home %s", m.config.Home)
	}
	defer unix.Close(home)
	if err := t.home(home); err != nil {
		return wire.DiskUse{}, err
	}
	return t.answer(), nil
}

// known is what the database records about a home.
type known struct {
	sandboxes    []wire.DiskSandbox // by name, without the measured sizes
	bases, spare map[string]bool    // layers
}

func (m *Meter) known(ctx context.Context) (k known, err error) {
	recs, err := m.config.DB.Sandboxes(ctx)
	if err != nil {
		return k, err
	}
	for i := range recs {
		use, err := m.config.DB.Usage(ctx, recs[i].ID)
		if err != nil {
			return k, err
		}
		k.sandboxes = append(k.sandboxes,
			wire.DiskSandbox{ID: string(recs[i].ID), Name: recs[i].Name, Own: use.Own, Shared: use.Shared})
	}
	slices.SortFunc(k.sandboxes, func(a, b wire.DiskSandbox) int { return cmp.Compare(a.Name, b.Name) })
	bases, err := m.config.DB.BaseLayers(ctx)
	if err != nil {
		return k, err
	}
	spare, err := m.config.Unused(ctx)
	k.bases, k.spare = set(bases), set(spare)
	return k, err
}

func set(ids []timeline.LayerID) map[string]bool {
	out := make(map[string]bool, len(ids))
	for _, id := range ids {
		out[string(id)] = true
	}
	return out
}

// part is a DiskPart that is being measured.
type part struct {
	count int
	sum   sum
}

// tally is a measurement.
type tally struct {
	walk
	known known
	parts map[string]*part // by kind
	live  map[string]*sum  // by ID of the sandbox
}

// home measures the open directory of a home.
func (t *tally) home(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fault.Wrap(err, "measure the home")
	}
	t.add(&t.parts[wire.DiskOther].sum, &st)
	top := map[string]func(dir int, name string) error{
		"layers": t.layer, "sandboxes": t.sandbox,
		"memory":  t.all(wire.DiskMemory),
		"masks":   t.all(wire.DiskCaches),
		"bases":   t.all(wire.DiskCaches),
		"ledger":  t.all(wire.DiskAudit),
		"witness": t.all(wire.DiskAudit),
		"lost":    t.all(wire.DiskLost),
	}
	return t.each(fd, func(name string) error {
		if in := top[name]; in != nil {
			return t.inside(fd, name, in)
		}
		return t.count(wire.DiskOther, fd, name)
	})
}

// each calls fn for the entries of an open directory of the store, whose number is bounded.
func (t *tally) each(fd int, fn func(name string) error) error {
	names, err := dirfd.Names(fd)
	if err != nil {
		return t.pass(err)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		if err := fn(name); err != nil {
			return err
		}
	}
	return nil
}

// inside calls fn for the entries of the directory name in at, which itself counts as other.
func (t *tally) inside(at int, name string, fn func(dir int, name string) error) error {
	fd, err := open(at, name)
	if errors.Is(err, unix.ENOTDIR) {
		return t.count(wire.DiskOther, at, name)
	}
	if err != nil {
		return t.pass(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return t.pass(err)
	}
	t.add(&t.parts[wire.DiskOther].sum, &st)
	return t.each(fd, func(name string) error { return fn(fd, name) })
}

// all returns a function that counts entries as a kind.
func (t *tally) all(kind string) func(dir int, name string) error {
	return func(dir int, name string) error { return t.count(kind, dir, name) }
}

// count counts an entry, with everything in it, as a kind.
func (t *tally) count(kind string, dir int, name string) error {
	p := t.parts[kind]
	p.count++
	return t.tree(dir, name, &p.sum)
}

// layer counts an entry of the store of layers.
func (t *tally) layer(dir int, name string) error {
	switch {
	case t.known.spare[name]:
		return t.count(wire.DiskRemoved, dir, name)
	case t.known.bases[name]:
		return t.count(wire.DiskBases, dir, name)
	case name == "tmp":
		return t.count(wire.DiskOther, dir, name)
	}
	return t.count(wire.DiskLayers, dir, name)
}

// sandbox counts the directory of a sandbox. A directory without a record belongs to a sandbox that was removed or is
// being created.
func (t *tally) sandbox(dir int, id string) error {
	is := func(s wire.DiskSandbox) bool { return s.ID == id }
	if !slices.ContainsFunc(t.known.sandboxes, is) {
		if strings.HasSuffix(id, ".removed") {
			return t.count(wire.DiskRemoved, dir, id)
		}
		return t.count(wire.DiskLive, dir, id)
	}
	return t.inside(dir, id, func(dir int, name string) error {
		switch {
		case name == "live":
			s := &sum{}
			t.live[id] = s
			t.parts[wire.DiskLive].count++
			return t.tree(dir, name, s)
		case strings.HasPrefix(name, "index."):
			return t.count(wire.DiskCaches, dir, name)
		case strings.HasPrefix(name, "journal"):
			return t.count(wire.DiskAudit, dir, name)
		}
		return t.count(wire.DiskOther, dir, name)
	})
}

// answer returns the result.
func (t *tally) answer() wire.DiskUse {
	out := wire.DiskUse{Sandboxes: t.known.sandboxes, Partial: t.partial}
	for i := range out.Sandboxes {
		if s := t.live[out.Sandboxes[i].ID]; s != nil {
			out.Sandboxes[i].Live = s.bytes()
			t.parts[wire.DiskLive].sum.share += s.share
		}
	}
	for _, k := range kinds {
		p := wire.DiskPart{Kind: k, Count: t.parts[k].count, Bytes: t.parts[k].sum.bytes()}
		if k == wire.DiskRemoved {
			p.Reclaimable = t.parts[k].sum.freed()
		}
		out.Bytes += p.Bytes
		out.Reclaimable += p.Reclaimable
		out.Parts = append(out.Parts, p)
	}
	return out
}

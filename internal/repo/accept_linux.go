package repo

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Accept configures Repo.Accept.
type Accept struct {
	// Bundle is the output of the sandbox's own git: `git bundle create - REF ^BASE`. It is read to its end, or to
	// the first error.
	Bundle io.Reader
	Ref    Ref   // the reference of the bundle to accept; "" is its HEAD
	Base   OID   // the commit that the sandbox started from
	Have   []OID // commits accepted before, which the bundle omits

	To      Ref    // the reference of the user's repository that is set
	Old     OID    // expected value of To; "" means that To must not exist
	Message string // for the reflog; one line
}

// Accepted is the result of Repo.Accept.
type Accepted struct {
	Tip     OID
	Commits int // number of commits that the tip has and the base does not
	Objects int
	Bytes   int64 // of the objects, unpacked
}

// Accept checks the commits of a sandbox and imports them into the user's repository: the objects first, durably, and
// then the reference, if it has not changed. Until all checks have passed, the user's repository is not changed.
// Invalid: the bundle is invalid. Conflict: To does not have the value Old, or is checked out in a work tree.
//
// It checks: each object by fsck, with warnings as errors (so no tree has an entry that is .git on any file system);
// that the tip is a commit; that each object that the tip has, but not Base or Have, came in the bundle, so that a
// sandbox cannot obtain the user's other objects by naming them; their sizes; that each path that differs from the
// base can be applied. Objects that the tip does not reach are not imported.
func (r *Repo) Accept(ctx context.Context, a Accept) (got Accepted, err error) {
	if err := r.sane(ctx, append([]OID{a.Base}, a.Have...)...); err != nil {
		return got, err
	}
	if err := r.settable(ctx, a.To, a.Old); err != nil {
		return got, err
	}
	d, err := r.desk()
	if err != nil {
		return got, err
	}
	defer d.close(&err)
	got, err = d.examine(ctx, a)
	if err != nil {
		return got, fault.Wrap(err, "check the bundle from the sandbox")
	}
	if err := r.keep(ctx, d, got.Tip, append([]OID{a.Base}, a.Have...)); err != nil {
		return got, err
	}
	return got, r.setRef(ctx, a.To, got.Tip, a.Old, a.Message)
}

// sane checks that commits of the request are in this repository.
func (r *Repo) sane(ctx context.Context, commits ...OID) error {
	for _, c := range commits {
		if _, err := ParseOID(string(c)); err != nil {
			return err
		}
		if found, err := r.commit(ctx, string(c)); err != nil || found != c {
			return fault.New(fault.NotFound, "%s has no commit %s", r.Top, c).Because(err)
		}
	}
	return nil
}

// examine brings the bundle to the desk and checks everything in it.
func (d *desk) examine(ctx context.Context, a Accept) (got Accepted, err error) {
	in, err := d.spool(a.Bundle)
	if err != nil {
		return got, err
	}
	name, tip := string(a.Ref), in.refs[a.Ref]
	if a.Ref == "" {
		name, tip = "HEAD", in.head
	}
	if tip == "" {
		return got, fault.New(fault.NotFound, "the bundle does not have %s", name)
	}
	got.Tip = tip
	known := append([]OID{a.Base}, a.Have...)
	came, borrowed, err := d.index(ctx, in)
	if err != nil {
		return got, err
	}
	if err := d.within(ctx, borrowed, known); err != nil {
		return got, err
	}
	if kind, err := d.run(ctx, call{args: []string{"cat-file", "-t", string(tip)}}); err != nil ||
		string(kind) != "commit\n" {
		return got, fault.New(fault.Invalid, "object %s of the bundle is not a commit", name).Because(err)
	}
	if err := d.connected(ctx, known, came, &got); err != nil {
		return got, err
	}
	if err := d.unfolds(ctx, a.Base, tip); err != nil {
		return got, err
	}
	_, err = d.changes(ctx, DiffOptions{From: a.Base, To: tip})
	return got, err
}

// incoming is a bundle whose pack is in a file of the desk.
type incoming struct {
	bundle
	pack    string
	objects int64 // declared by the pack
}

// spool reads the bundle to its end, or to the limit.
func (d *desk) spool(src io.Reader) (in incoming, err error) {
	lr := &io.LimitedReader{R: src, N: d.limits.Input + 1}
	br := bufio.NewReaderSize(lr, 64<<10)
	if in.bundle, err = readBundle(br); err != nil {
		return in, err
	}
	if in.format != d.format {
		return in, fault.New(fault.Invalid, "the bundle uses object format %s, the repository %s", in.format, d.format)
	}
	if in.objects, err = packObjects(br); err != nil {
		return in, err
	}
	if in.objects > int64(d.limits.Objects) {
		return in, fault.New(fault.Invalid, "the bundle claims %d objects, more than the limit of %d", in.objects,
			d.limits.Objects)
	}
	in.pack = filepath.Join(d.dir, "in.pack")
	f, err := os.OpenFile(in.pack, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return in, fault.Wrap(err, "store the bundle")
	}
	_, err = io.Copy(f, br)
	if err = errors.Join(err, f.Close()); err != nil {
		return in, fault.Wrap(err, "store the bundle")
	}
	if lr.N <= 0 {
		return in, fault.New(fault.Invalid, "the bundle exceeds %d bytes", d.limits.Input)
	}
	return in, nil
}

// index makes git unpack and check every object of the pack. It returns the IDs of the objects in the pack, and
// of the user's objects that are bases of deltas in the pack, which git appended.
func (d *desk) index(ctx context.Context, in incoming) (came, borrowed map[OID]bool, err error) {
	f, err := os.Open(in.pack)
	if err != nil {
		return nil, nil, fault.Wrap(err, "read the pack")
	}
	defer f.Close()
	out, err := d.run(ctx,
		call{args: []string{"index-pack", "--stdin", "--fix-thin", "--strict=badFilemode=error"}, stdin: f})
	if err != nil {
		return nil, nil, hostile(err, "git rejects an object of the bundle")
	}
	kind, hash, _ := strings.Cut(strings.TrimSpace(string(out)), "\t")
	if _, err := ParseOID(hash); err != nil || kind != "pack" {
		return nil, nil, fault.New(fault.Internal, "unexpected output %q of git for a pack", clip(string(out)))
	}
	idx, err := os.Open(filepath.Join(d.dir, "objects/pack/pack-"+hash+".idx"))
	if err != nil {
		return nil, nil, fault.Wrap(err, "read the index of the pack")
	}
	defer idx.Close()
	type entry struct {
		at int64
		id OID
	}
	var all []entry
	err = d.lines(ctx, call{args: []string{"show-index", "--object-format=" + string(d.format)}, stdin: idx},
		func(l string) error {
			f := strings.Fields(l)
			if len(f) < 2 {
				return fault.New(fault.Internal, "unexpected output %q of git for a pack", clip(l))
			}
			at, err := strconv.ParseInt(f[0], 10, 64)
			all = append(all, entry{at, OID(f[1])})
			return err
		})
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.at, b.at) })
	came, borrowed = map[OID]bool{}, map[OID]bool{}
	for i, e := range all {
		if int64(i) < in.objects {
			came[e.id] = true
		} else {
			borrowed[e.id] = true
		}
	}
	return came, borrowed, err
}

// within checks that the sandbox already had the bases of deltas. Otherwise it could read any object of the user
// whose ID it knows. Nearly always they are in the trees of known.
func (d *desk) within(ctx context.Context, borrowed map[OID]bool, known []OID) error {
	left := maps.Clone(borrowed)
	found := func(id string) error {
		delete(left, OID(id))
		if len(left) == 0 {
			return errFound
		}
		return nil
	}
	for _, k := range known {
		if len(left) == 0 {
			return nil
		}
		delete(left, k)
		err := d.lines(ctx,
			call{args: []string{"ls-tree", "-r", "-t", "--full-tree", "--object-only", string(k)},
				most: most(d.limits.Objects, 65)}, found)
		if err != nil && !errors.Is(err, errFound) {
			return err
		}
	}
	if len(left) == 0 {
		return nil
	}
	args := []string{"rev-list", "--objects", "--no-object-names"}
	for _, k := range known {
		args = append(args, string(k))
	}
	err := d.lines(ctx, call{args: args, most: 1 << 40}, found)
	switch {
	case err != nil && !errors.Is(err, errFound):
		return err
	case len(left) > 0:
		return fault.New(fault.Invalid, "the bundle refers to objects of the repository that the sandbox did not receive")
	}
	return nil
}

// errFound stops reading a list early.
var errFound = errors.New("found")

// connected walks from the tip to the known commits, and accounts for the objects on the way.
func (d *desk) connected(ctx context.Context, known []OID, came map[OID]bool, got *Accepted) (err error) {
	f, err := os.OpenFile(filepath.Join(d.dir, "reached"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fault.Wrap(err, "list the objects reachable from the tip")
	}
	defer f.Close()
	args := []string{"rev-list", "--objects", "--no-object-names", string(got.Tip), "--not"}
	for _, k := range known {
		args = append(args, string(k))
	}
	if _, err := d.run(ctx, call{args: args, stdout: f, most: most(d.limits.Objects, d.format.digits()+1)}); err != nil {
		return hostile(err, "objects are missing or have the wrong type")
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fault.Wrap(err, "read the objects reachable from the tip")
	}
	return d.lines(ctx,
		call{args: []string{"cat-file", "--buffer", "--batch-check=%(objectname) %(objecttype) %(objectsize)"}, stdin: f,
			most: most(d.limits.Objects, 128)}, func(l string) error { return got.weigh(l, came, d.limits) })
}

// weigh accounts for one object that the tip reaches.
func (got *Accepted) weigh(l string, came map[OID]bool, limits Limits) error {
	f := strings.Fields(l)
	if len(f) != 3 {
		return fault.New(fault.Invalid, "missing object: %q", clip(l))
	}
	size, err := strconv.ParseInt(f[2], 10, 64)
	if err != nil {
		return fault.New(fault.Internal, "unexpected output %q of git for an object", clip(l))
	}
	if f[1] == "commit" {
		got.Commits++
	}
	got.Objects++
	got.Bytes += size
	switch {
	case !came[OID(f[0])]:
		return fault.New(fault.Invalid, "object %s is not in the bundle", f[0])
	case size > limits.Object:
		return fault.New(fault.Invalid, "object %s has %d bytes, more than the limit of %d", f[0], size, limits.Object)
	case got.Bytes > limits.Total:
		return fault.New(fault.Invalid, "the objects exceed %d bytes", limits.Total)
	}
	return nil
}

// unfolds refuses a tree with far more files than the base. A few trees nested in each other many times can have
// that many, and git would hold them all in memory before they could be counted.
func (d *desk) unfolds(ctx context.Context, base, tip OID) error {
	files := func(of OID, most int) (n int, err error) {
		err = d.lines(ctx, call{args: []string{"ls-tree", "-r", "--full-tree", "--object-only", string(of)}, most: 1 << 40},
			func(string) error {
				if n++; n > most {
					return errFound
				}
				return nil
			})
		if errors.Is(err, errFound) {
			err = nil
		}
		return n, err
	}
	n, err := files(tip, d.limits.Changes)
	if err != nil || n <= d.limits.Changes {
		return err
	}
	had, err := files(base, math.MaxInt)
	if err != nil {
		return err
	}
	if n, err = files(tip, had+d.limits.Changes); err == nil && n > had+d.limits.Changes {
		err = fault.New(fault.Invalid, "more than %d paths differ", d.limits.Changes)
	}
	return err
}

// most returns the size of n lines of each bytes.
func most(n, each int) int64 { return int64(n)*int64(each) + 1<<16 }

// hostile converts an error of git on data of a sandbox to one that blames the sandbox.
func hostile(err error, format string, args ...any) error {
	var ge *GitError
	if !errors.As(err, &ge) {
		return err
	}
	return fault.New(fault.Invalid, format, args...).Because(err)
}

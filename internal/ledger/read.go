package ledger

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// Reader reads a ledger, whether or not a process has it open. It holds no resources, and is safe for
// concurrent use.
type Reader struct{ root string }

// NewReader returns a reader of the ledger in a directory.
func NewReader(dir string) Reader { return Reader{dir} }

// Filter selects records. The zero Filter selects all.
type Filter struct {
	From  int64         // smallest seq
	Since time.Time     // time of the oldest record, by a clock that was not set back
	Kinds []format.Kind // only these kinds; empty: all
	Limit int           // maximum number of records; 0: all
}

func (f *Filter) wants(r *format.Record) bool {
	return r.Seq >= f.From && !r.Time.Before(f.Since) && (len(f.Kinds) == 0 || slices.Contains(f.Kinds, r.Kind()))
}

// Newest returns the newest n records of a sandbox that a filter selects, oldest first. It reads backwards from the
// end, no further than necessary except for the rest of a segment. It ignores the Limit of the filter.
func (r Reader) Newest(ctx context.Context, id format.Sandbox, f Filter, n int) ([]*format.Record, error) {
	if !id.Valid() {
		return nil, fault.New(fault.Invalid, "invalid sandbox %.80q", string(id))
	}
	all, err := segments(r.root, id)
	if err != nil {
		return nil, fault.Wrap(err, "read the ledger of %s", id)
	}
	first, err := r.firstSince(ctx, id, all, f.Since)
	if err != nil {
		return nil, fault.Wrap(err, "read the ledger of %s", id)
	}
	f.Limit = 0
	var found []*format.Record
	next := int64(math.MaxInt64) // the first record that was already read
	for _, at := range slices.Backward(all) {
		if len(found) >= n || next <= max(f.From, first) {
			break
		}
		var part []*format.Record
		within := f
		within.From = max(f.From, at)
		for rec, err := range r.Read(ctx, id, within) {
			if err != nil {
				return nil, err
			}
			if rec.Seq >= next {
				break
			}
			part = append(part, rec)
			part = part[max(0, len(part)+len(found)-n):]
		}
		found, next = append(part, found...), at
	}
	return found, nil
}

// firstWanted returns the number of the record from which on a filter must be applied.
func (r Reader) firstWanted(ctx context.Context, id format.Sandbox, f Filter) (int64, error) {
	if f.Since.IsZero() {
		return f.From, nil
	}
	all, err := segments(r.root, id)
	if err != nil {
		return 0, err
	}
	i, found := slices.BinarySearch(all, f.From)
	if !found {
		i--
	}
	all = all[max(0, i):]
	first, err := r.firstSince(ctx, id, all, f.Since)
	return max(f.From, first), err
}

// firstSince returns the first record of the segment that has the oldest record of a sandbox not older than a time,
// judging by the times of the segments' first records. If the clock was set back, it may miss records from before
// that.
func (r Reader) firstSince(
	ctx context.Context, id format.Sandbox, all []int64, since time.Time,
) (first int64, err error) {
	if since.IsZero() || len(all) == 0 {
		return 0, nil
	}
	i := sort.Search(len(all), func(i int) bool {
		for rec, rerr := range r.Read(ctx, id, Filter{From: all[i], Limit: 1}) {
			if rerr != nil {
				err = errors.Join(err, rerr)
				return false
			}
			return !rec.Time.Before(since)
		}
		return false
	})
	return all[max(0, i-1)], err
}

// Read yields the records of a sandbox, oldest first, as they are on the disk now. It verifies only that each can be
// read and has the next number. It stops after an error, also of ctx.
func (r Reader) Read(ctx context.Context, id format.Sandbox, f Filter) iter.Seq2[*format.Record, error] {
	return func(yield func(*format.Record, error) bool) {
		r.each(ctx, id, f, func() bool { return false }, yield)
	}
}

// After yields the records of all sandboxes at the positions of the log from leaf on, one sandbox after the other, in
// order within each. If there are none, it reads only the ends of chains. It stops after an error.
func (r Reader) After(ctx context.Context, leaf int64) iter.Seq2[*format.Record, error] {
	return func(yield func(*format.Record, error) bool) {
		names, err := os.ReadDir(filepath.Join(r.root, dirSandboxes))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			yield(nil, fault.Wrap(err, "read the ledger in %s", r.root))
			return
		}
		for _, d := range names {
			id := format.Sandbox(d.Name())
			if !id.Valid() {
				continue
			}
			from, err := r.segmentAt(ctx, id, leaf)
			if err != nil {
				yield(nil, fault.Wrap(err, "read the ledger of %s", id))
				return
			}
			for rec, err := range r.Read(ctx, id, Filter{From: from}) {
				if err == nil && rec.Leaf < leaf {
					continue
				}
				if !yield(rec, err) || err != nil {
					return
				}
			}
		}
	}
}

// segmentAt returns the first record of the segment that has the first record of a sandbox at or after a leaf.
func (r Reader) segmentAt(ctx context.Context, id format.Sandbox, leaf int64) (first int64, err error) {
	all, err := segments(r.root, id)
	if err != nil {
		return 0, err
	}
	for _, first = range slices.Backward(all) {
		for rec, err := range r.Read(ctx, id, Filter{From: first, Limit: 1}) {
			if err != nil {
				return 0, err
			}
			if rec.Leaf <= leaf {
				return first, nil
			}
		}
	}
	return first, nil
}

// pollEvery is how often Follow looks for new records.
const pollEvery = 100 * time.Millisecond

// Follow yields the records of Read, and then each record that is appended, until ctx is canceled.
func (r Reader) Follow(ctx context.Context, id format.Sandbox, f Filter) iter.Seq2[*format.Record, error] {
	return func(yield func(*format.Record, error) bool) {
		tick := time.NewTicker(pollEvery)
		defer tick.Stop()
		r.each(ctx, id, f, func() bool {
			select {
			case <-ctx.Done():
				return false
			case <-tick.C:
				return true
			}
		}, func(rec *format.Record, err error) bool {
			return (err == nil || ctx.Err() == nil) && yield(rec, err)
		})
	}
}

// each yields records. At the end of the present ones it continues if wait returns true.
func (r Reader) each(
	ctx context.Context, id format.Sandbox, f Filter, wait func() bool, yield func(*format.Record, error) bool,
) {
	fail := func(err error) { yield(nil, fault.Wrap(err, "read the ledger of %s", id)) }
	if !id.Valid() {
		fail(fault.New(fault.Invalid, "invalid sandbox %.80q", string(id)))
		return
	}
	c := &cursor{path: r.root, id: id}
	defer c.close()
	first, err := r.firstWanted(ctx, id, f)
	if err != nil {
		fail(err)
		return
	}
	if first > 1 {
		if err := c.skip(first); err != nil {
			fail(err)
			return
		}
	}
	for last, given := int64(0), 0; ; {
		if ctx.Err() != nil {
			yield(nil, context.Cause(ctx))
			return
		}
		line, err := c.next()
		if errors.Is(err, io.EOF) {
			if wait() {
				continue
			}
			return
		}
		var rec *format.Record
		if err == nil {
			rec, err = format.Parse(line)
		}
		if err == nil && (rec.Sandbox != id || last > 0 && rec.Seq != last+1) {
			err = fault.New(fault.Corrupt, "record %d of %s follows record %d", rec.Seq, rec.Sandbox, last).
				WithHint("find the damage: coppice system verify")
		}
		if err != nil {
			fail(err)
			return
		}
		last = rec.Seq
		if !f.wants(rec) {
			continue
		}
		if given++; !yield(rec, nil) || given == f.Limit {
			return
		}
	}
}

// Keys returns the public keys of the log.
func (r Reader) Keys() (format.Keys, error) {
	b, err := readFile(r.root, fileKeys)
	if err == nil && b == nil {
		err = fault.New(fault.NotFound, "no ledger found in %s", r.root)
	}
	if err != nil {
		return nil, err
	}
	return format.ParseKeys(b)
}

// ends returns the ends of the chains at the last fold.
func (r Reader) ends(keys format.Keys) (heads, error) {
	b, err := readFile(r.root, fileHeads)
	if err != nil {
		return heads{}, err
	}
	return openHeads(b, keys)
}

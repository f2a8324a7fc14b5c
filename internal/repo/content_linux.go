package repo

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Marks returns marks for the changes that the host would later run or trust. It reads the required files, and
// runs nothing.
func (r *Repo) Marks(ctx context.Context, changes []Change) (all []Mark, err error) {
	d, err := r.desk()
	if err != nil {
		return nil, err
	}
	defer d.close(&err)
	return d.marks(ctx, changes)
}

// atOnce is the maximum size of contents in memory at once.
const atOnce = 32 << 20

// marks is Marks, for changes with objects on the desk.
func (d *desk) marks(ctx context.Context, changes []Change) ([]Mark, error) {
	var plain []Change
	for _, c := range changes {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		plain = append(plain, apart(c)...)
	}
	sizes, err := d.sizes(ctx, wanted(plain))
	if err != nil {
		return nil, err
	}
	var all []Mark
	for len(plain) > 0 {
		n, held := 0, int64(0)
		want := map[OID]bool{}
		for ; n < len(plain) && held < atOnce; n++ {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			for id := range wanted(plain[n : n+1]) {
				if size := sizes[id]; size <= maxLook && !want[id] {
					want[id], held = true, held+size
				}
			}
		}
		texts, err := d.contents(ctx, want)
		if err != nil {
			return nil, err
		}
		for _, c := range plain[:n] {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			all = append(all, marks(c, texts[c.OldID], texts[c.ID])...)
		}
		plain = plain[n:]
	}
	return all, nil
}

// apart splits a rename into a deletion and an addition.
func apart(c Change) []Change {
	switch c.Status {
	case 'R':
		return []Change{{Status: 'D', Path: c.OldPath, OldMode: c.OldMode, OldID: c.OldID},
			{Status: 'A', Path: c.Path, Mode: c.Mode, ID: c.ID}}
	case 'C':
		return []Change{{Status: 'A', Path: c.Path, Mode: c.Mode, ID: c.ID}}
	}
	return []Change{c}
}

// wanted returns the objects whose contents marks needs.
func wanted(changes []Change) map[OID]bool {
	want := map[OID]bool{}
	for _, c := range changes {
		if !looks(c) {
			continue
		}
		for id, m := range map[OID]Mode{c.OldID: c.OldMode, c.ID: c.Mode} {
			if id != "" && m != ModeSubmodule {
				want[id] = true
			}
		}
	}
	return want
}

func list(ids map[OID]bool) *strings.Reader {
	var b strings.Builder
	for id := range ids {
		fmt.Fprintln(&b, id)
	}
	return strings.NewReader(b.String())
}

// sizes returns the sizes of objects.
func (d *desk) sizes(ctx context.Context, ids map[OID]bool) (map[OID]int64, error) {
	sizes := map[OID]int64{}
	if len(ids) == 0 {
		return sizes, nil
	}
	err := d.lines(ctx,
		call{args: []string{"cat-file", "--buffer", "--batch-check=%(objectname) %(objectsize)"}, stdin: list(ids),
			most: most(len(ids), 128)}, func(l string) error {
			id, size, _ := strings.Cut(l, " ")
			n, err := strconv.ParseInt(size, 10, 64)
			if err != nil {
				return fault.New(fault.Invalid, "missing object: %q", clip(l))
			}
			sizes[OID(id)] = n
			return nil
		})
	return sizes, err
}

// contents returns the contents of objects. Empty content is not nil.
func (d *desk) contents(ctx context.Context, ids map[OID]bool) (map[OID][]byte, error) {
	texts := map[OID][]byte{}
	if len(ids) == 0 {
		return texts, nil
	}
	out, err := d.run(ctx,
		call{args: []string{"cat-file", "--buffer", "--batch"}, stdin: list(ids), most: most(len(ids), 128) + 2*atOnce})
	if err != nil {
		return nil, fault.Wrap(err, "read objects")
	}
	for len(out) > 0 {
		id, content, rest, ok := parseObject(out)
		if !ok {
			return nil, fault.New(fault.Internal, "malformed object in the output of git")
		}
		texts[id], out = content, rest
	}
	return texts, nil
}

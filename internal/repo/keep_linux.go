package repo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// keep copies the objects that tip has and known do not from the desk into the user's repository, as one pack,
// durably. The user's git writes it, like a fetch. Until a reference names it, it is unreferenced, and git's own
// garbage collection removes it after its grace period (two weeks by default).
func (r *Repo) keep(ctx context.Context, d *desk, tip OID, known []OID) error {
	var want strings.Builder
	fmt.Fprintf(&want, "%s\n", tip)
	for _, k := range known {
		fmt.Fprintf(&want, "^%s\n", k)
	}
	out, err := d.run(ctx,
		call{args: []string{"pack-objects", "-q", "--revs", "--window=0", "--non-empty", filepath.Join(d.dir, "out")},
			stdin: strings.NewReader(want.String())})
	if err != nil {
		return fault.Wrap(err, "pack the objects to keep")
	}
	for hash := range strings.FieldsSeq(string(out)) {
		if err := r.add(ctx, filepath.Join(d.dir, "out-"+hash+".pack")); err != nil {
			return fault.Wrap(err, "write objects into %s", r.Common)
		}
	}
	return nil
}

// add imports a pack into the user's repository.
func (r *Repo) add(ctx context.Context, pack string) error {
	f, err := os.Open(pack)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := r.user(ctx, call{args: []string{"index-pack", "--stdin"}, stdin: f}); err != nil {
		return err
	}
	return vfs.Sync(r.opt.FS, filepath.Join(r.Common, "objects", "pack")) // git flushes only the file
}

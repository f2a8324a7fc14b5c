package repo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// fetchedRef is the name of the tip in a bundle for examination.
const fetchedRef = Ref("refs/coppice/fetched")

// Examine checks commits that the user's git fetched from another user, as Accept checks those of a sandbox. It
// checks each object that tip has and base does not by fsck, with warnings as errors whatever the user's
// configuration permits; and it checks sizes, numbers and paths. Base is trusted: see Own. Nothing is written.
// Invalid: a check failed.
func (r *Repo) Examine(ctx context.Context, base, tip OID) (got Accepted, err error) {
	if err := r.sane(ctx, base, tip); err != nil || base == tip {
		return Accepted{Tip: tip}, err
	}
	d, err := r.desk()
	if err != nil {
		return got, err
	}
	defer d.close(&err)
	src, err := d.bundle(ctx, base, tip)
	if err != nil {
		return got, err
	}
	defer src.Close()
	got, err = d.examine(ctx, Accept{Bundle: src, Ref: fetchedRef, Base: base})
	return got, fault.Wrap(err, "check the fetched objects")
}

// bundle writes a bundle of the commits that a tip has and a base does not, with all their objects. The caller
// closes it.
func (d *desk) bundle(ctx context.Context, base, tip OID) (f *os.File, err error) {
	if f, err = os.OpenFile(filepath.Join(d.dir, "fetched"), os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND,
		0o600); err != nil {
		return nil, fault.Wrap(err, "store the fetched objects")
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	head := "# v2 git bundle\n"
	if d.format == SHA256 {
		head = "# v3 git bundle\n@object-format=sha256\n"
	}
	if _, err = fmt.Fprintf(f, "%s-%s\n%s %s\n\n", head, base, tip, fetchedRef); err != nil {
		return nil, fault.Wrap(err, "store the fetched objects")
	}
	if _, err = d.run(ctx,
		call{args: []string{"pack-objects", "-q", "--revs", "--stdout", "--window=0"}, stdout: f, most: d.limits.Input,
			stdin: strings.NewReader(fmt.Sprintf("%s\n^%s\n", tip, base))}); err != nil {
		return nil, hostile(err, "fetched objects are missing or have the wrong type")
	}
	_, err = f.Seek(0, 0)
	return f, fault.Wrap(err, "read the fetched objects")
}

// Own reports whether a commit is in the history of HEAD, a branch, a tag or a remote-tracking branch of the user.
// References of Coppice and branches called coppice/... do not count.
func (r *Repo) Own(ctx context.Context, c OID) (bool, error) {
	if err := r.sane(ctx, c); err != nil {
		return false, err
	}
	out, err := r.user(ctx, call{args: []string{"rev-list", "--max-count=1", string(c), "--not", "HEAD",
		"--exclude=coppice/*", "--branches", "--exclude=*/coppice/*", "--remotes", "--tags"}})
	if err != nil {
		return false, fault.Wrap(err, "find the references that contain commit %s", c)
	}
	return len(out) == 0, nil
}

// RefMove is the change of one reference.
type RefMove struct {
	Ref     Ref
	To, Old OID // "" in To: delete; "" in Old: must not exist
}

// MoveRefs sets several references durably if each has its value Old, with lines in their reflogs. It is for
// references of Coppice, which are never checked out. Conflict: one does not have its expected value, and none is
// set.
func (r *Repo) MoveRefs(ctx context.Context, message string, moves ...RefMove) error {
	var list strings.Builder
	for _, m := range moves {
		if _, err := ParseRef(string(m.Ref)); err != nil {
			return err
		}
		if m.To == m.Old {
			fmt.Fprintf(&list, "verify %s %s\n", m.Ref, m.Old.orNull(r.Format))
			continue
		}
		fmt.Fprintf(&list, "update %s %s %s\n", m.Ref, m.To.orNull(r.Format), m.Old.orNull(r.Format))
	}
	if message = printable(message); message == "" {
		message = "coppice"
	}
	_, err := r.user(ctx,
		call{args: []string{"update-ref", "-m", message, "--create-reflog", "--stdin"},
			stdin: strings.NewReader(list.String())})
	if code(err) > 0 {
		return fault.New(fault.Conflict, "git cannot set %s", moves[0].Ref).Because(err).
			WithHint("another process may be updating it; try again")
	}
	if err != nil {
		return fault.Wrap(err, "set %s", moves[0].Ref)
	}
	for _, m := range moves {
		err = errors.Join(err, r.syncRef(m.Ref))
	}
	return fault.Wrap(err, "set %s", moves[0].Ref)
}

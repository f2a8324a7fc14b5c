package repo

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Commit is the content of a commit, all of it as claimed by its author. The message has no control bytes except
// newlines and tabs.
type Commit struct {
	ID      OID
	Author  Person
	Message string
}

// Count returns the number of commits of to that from does not have.
func (r *Repo) Count(ctx context.Context, from, to OID) (n int, err error) {
	d, err := r.desk()
	if err != nil {
		return 0, err
	}
	defer d.close(&err)
	out, err := d.run(ctx, call{args: []string{"rev-list", "--count", "--end-of-options", string(to), "^" + string(from)}})
	if err != nil {
		return 0, fault.Wrap(hostile(err, "git cannot count the commits"), "count the commits")
	}
	n, err = strconv.Atoi(strings.TrimSpace(string(out)))
	return n, fault.Wrap(err, "count the commits")
}

// maxMessage is the maximum size of a commit whose message is read, in bytes.
const maxMessage = 64 << 10

// Commits returns the newest commits, at most most, of to that from does not have, oldest first. A commit larger
// than maxMessage has no message.
func (r *Repo) Commits(ctx context.Context, from, to OID, most int) (all []Commit, err error) {
	d, err := r.desk()
	if err != nil {
		return nil, err
	}
	defer d.close(&err)
	want := map[OID]bool{}
	err = d.lines(ctx,
		call{args: []string{"rev-list", "--reverse", "--topo-order", "--max-count=" + strconv.Itoa(most), "--end-of-options",
			string(to), "^" + string(from)}}, func(l string) error {
			id, err := ParseOID(l)
			want[id] = true
			all = append(all, Commit{ID: id})
			return err
		})
	if err != nil {
		return nil, fault.Wrap(hostile(err, "git cannot list the commits"), "list the commits")
	}
	sizes, err := d.sizes(ctx, want)
	if err != nil {
		return nil, err
	}
	for id, n := range sizes {
		if n > maxMessage {
			delete(want, id)
		}
	}
	texts, err := d.contents(ctx, want)
	if err != nil {
		return nil, err
	}
	for i := range all {
		all[i].read(string(texts[all[i].ID]))
	}
	return all, nil
}

// read parses the content of a commit.
func (c *Commit) read(content string) {
	head, text, _ := strings.Cut(content, "\n\n")
	for l := range strings.SplitSeq(head, "\n") {
		if who, is := strings.CutPrefix(l, "author "); is {
			c.Author, _ = author(who)
			break
		}
	}
	c.Message = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (r < ' ' || r >= 0x7f && r < 0xa0) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "\ufffd")))
}

// Within reports whether a commit is in the history of one of others. It returns false for a commit that the
// repository does not have.
func (r *Repo) Within(ctx context.Context, commit OID, of ...OID) (bool, error) {
	if _, err := ParseOID(string(commit)); err != nil {
		return false, err
	}
	if found, err := r.commit(ctx, string(commit)); err != nil || found != commit {
		if fault.Is(err, fault.NotFound) {
			err = nil
		}
		return false, err
	}
	for _, o := range of {
		_, err := r.user(ctx, call{args: []string{"merge-base", "--is-ancestor", string(commit), string(o)}})
		if c := code(err); c == 0 || c < 0 {
			return c == 0, err
		}
	}
	return false, nil
}

// Had reports whether a reference is at a commit, or was at it since it was at the commit before. known is false
// if the reflog does not go back to before: a reflog is deleted with its reference, and expires.
func (r *Repo) Had(ctx context.Context, ref Ref, commit, before OID) (had, known bool, err error) {
	if _, err := ParseRef(string(ref)); err != nil {
		return false, false, err
	}
	now, err := r.tip(ctx, ref)
	if err != nil || now == "" {
		return false, false, err
	}
	if now == commit {
		return true, true, nil
	}
	out, err := r.user(ctx, call{args: []string{"rev-list", "--walk-reflogs", string(ref)}})
	if code(err) > 0 {
		return false, false, nil // no reflog
	}
	if err != nil {
		return false, false, fault.Wrap(err, "read the reflog of %s", ref)
	}
	was := strings.Fields(string(out))
	had = slices.Contains(was, string(commit))
	return had, had || slices.Contains(was, string(before)), nil
}

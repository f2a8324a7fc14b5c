package repo

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestAccept_TakesHead checks that HEAD of a bundle is accepted if no reference is named, whatever its branch is,
// and only if the bundle has exactly one.
func TestAccept_TakesHead(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	l.file(dir, "a.txt", "changed\n")
	tip := l.commit(dir, "change")
	l.run(dir, "checkout", "-q", "--detach")
	base := r.Head.Commit
	b := l.bundle(dir, "HEAD", "^"+string(base))
	a := Accept{Bundle: bytes.NewReader(b), Base: base, To: "refs/coppice/box/x/tip", Message: "m"}
	got, err := r.Accept(ctx, a)
	if err != nil || got.Tip != tip || got.Commits != 1 {
		t.Fatal(got, err)
	}
	line := []byte(string(tip) + " HEAD\n")
	if bytes.Count(b, line) != 1 {
		t.Fatalf("no HEAD in %q", b[:200])
	}
	for name, bad := range map[string][]byte{
		"twice":  bytes.Replace(b, line, slices.Concat(line, line), 1),
		"none":   bytes.Replace(b, line, []byte(string(tip)+" refs/heads/x\n"), 1),
		"no OID": bytes.Replace(b, line, []byte(strings.Repeat("0", 40)+" HEAD\n"), 1),
	} {
		a.Bundle, a.Old = bytes.NewReader(bad), got.Tip
		if _, err := r.Accept(ctx, a); !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.NotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l.sound()
}

// TestAccept_RefusesTreeBomb covers a few trees that each contain the next ten times, and so have too many files.
// They are counted before git lists them.
func TestAccept_RefusesTreeBomb(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	r.opt.Limits.Memory = 100 << 20 // too little for a list of the files
	tree := l.run(dir, "rev-parse", "HEAD^{tree}")
	for range 10 {
		var in strings.Builder
		for _, name := range "abcdefghij" {
			fmt.Fprintf(&in, "040000 tree %s\t%c\n", tree, name)
		}
		out, err := l.try(dir, []byte(in.String()), "mktree")
		if err != nil {
			t.Fatal(out)
		}
		tree = strings.TrimSpace(out)
	}
	base := r.Head.Commit
	l.run(dir, "update-ref", "HEAD", l.run(dir, "commit-tree", "-p", "HEAD", "-m", "bomb", tree))
	_, err := r.Accept(ctx,
		Accept{Bundle: bytes.NewReader(l.bundle(dir, "HEAD", "^"+string(base))), Base: base,
			To: "refs/coppice/box/x/tip", Message: "m"})
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "paths differ") {
		t.Error(err)
	}
	l.sound()
}

func TestCommits_CountWithinAndHad(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	base := r.Head.Commit
	l.run(l.top, "checkout", "-q", "-b", "side")
	l.file(l.top, "a.txt", "1\n")
	one := l.commit(l.top, "One\n\nof \x1b[31mtwo")
	l.file(l.top, "a.txt", "2\n")
	two := l.commit(l.top, strings.Repeat("long ", maxMessage/4))
	all, err := r.Commits(ctx, base, two, 10)
	if err != nil || len(all) != 2 || all[0].ID != one || all[0].Message != "One\n\nof ?[31mtwo" ||
		all[0].Author != (Person{"User", "user@example.org"}) || all[1].ID != two || all[1].Message != "" {
		t.Errorf("%+v, %v", all, err)
	}
	if newest, err := r.Commits(ctx, base, two, 1); err != nil || len(newest) != 1 || newest[0].ID != two {
		t.Errorf("%+v, %v", newest, err)
	}
	if n, err := r.Count(ctx, base, two); n != 2 || err != nil {
		t.Error(n, err)
	}
	missing := OID(strings.Repeat("ab", 20))
	for _, c := range []struct {
		id   OID
		of   []OID
		want bool
	}{{one, []OID{two}, true}, {two, []OID{one}, false}, {base, []OID{one}, true}, {two, []OID{base, two}, true},
		{missing, []OID{two}, false}, {two, nil, false}} {
		if got, err := r.Within(ctx, c.id, c.of...); got != c.want || err != nil {
			t.Errorf("%s within %s: %t, %v", c.id, c.of, got, err)
		}
	}
	if had, _, err := r.Had(ctx, "refs/heads/side", one, base); !had || err != nil {
		t.Error(had, err)
	}
	l.run(l.top, "reset", "-q", "--hard", string(base))
	for id, want := range map[OID]bool{two: true, missing: false} {
		if had, _, err := r.Had(ctx, "refs/heads/side", id, base); had != want || err != nil {
			t.Errorf("%s: %t, %v", id, had, err)
		}
	}
	if had, _, err := r.Had(ctx, "refs/heads/nowhere", two, base); had || err != nil {
		t.Error(had, err)
	}
}

// TestHad_RequiresReflog checks that Had returns known only if the reflog goes back far enough.
func TestHad_RequiresReflog(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	base := r.Head.Commit
	l.run(l.top, "checkout", "-q", "-b", "work")
	branches := []string{"there", "bare", "deleted", "again"}
	for _, branch := range branches {
		l.run(l.top, "branch", branch, string(base))
	}
	l.file(l.top, "a.txt", "1\n")
	one := l.commit(l.top, "One")
	for _, branch := range branches {
		l.run(l.top, "update-ref", "refs/heads/"+branch, string(one))
	}
	l.run(l.top, "reflog", "expire", "--expire=all", "refs/heads/bare")
	l.run(l.top, "branch", "-q", "-D", "deleted", "again")
	l.run(l.top, "branch", "again", string(one))
	for branch, want := range map[Ref]bool{
		"there": true, "bare": false, "deleted": false, "again": false, "never": false,
	} {
		had, known, err := r.Had(ctx, "refs/heads/"+branch, OID(strings.Repeat("ab", 20)), base)
		if had || known != want || err != nil {
			t.Errorf("%s: %t, known %t, %v", branch, had, known, err)
		}
	}
}

// TestSnapshot_IsDeterministic checks that the same state gives the same commit, and another state a different
// one.
func TestSnapshot_IsDeterministic(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	l.file(dir, "a.txt", "changed\n")
	first, err := l.snapshot(r, dir, func(*Snapshot) {})
	if err != nil {
		t.Fatal(err)
	}
	r.opt.Now = func() time.Time { return time.Unix(1_800_000_000, 0) }
	again, err := l.snapshot(r, dir, func(s *Snapshot) { s.Old = first.Commit })
	if err != nil || again.Commit != first.Commit || again.Changed != 1 {
		t.Errorf("%+v and then %+v, %v", first, again, err)
	}
	l.file(dir, "a.txt", "changed once more\n")
	other, err := l.snapshot(r, dir, func(s *Snapshot) { s.Old = first.Commit })
	if err != nil || other.Commit == first.Commit {
		t.Errorf("%+v and then %+v, %v", first, other, err)
	}
	l.sound()
}

func TestApply_DryRunThenApply(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	l.file(dir, "Makefile", "all:\n")
	l.commit(dir, "work")
	got := l.accept(r, dir)
	a := Apply{Base: r.Head.Commit, Tip: got.Tip, Way: Squash, Message: "m", DryRun: true}
	was := l.state()
	dry, err := r.Apply(ctx, a)
	if err != nil || len(dry.Changes) != 1 || len(dry.Marks) != 1 || dry.New == "" {
		t.Fatalf("%+v, %v", dry, err)
	}
	if l.state() != was {
		t.Error("a dry run changed the repository")
	}
	stop := errors.New("stop")
	a.DryRun, a.TrustAll = false, true
	a.Do = func(now Applied, _ func() error) error {
		if l.state() != was || now.Old != a.Base || len(now.Marks) != 1 {
			t.Errorf("before: %+v", now)
		}
		return stop
	}
	if _, err := r.Apply(ctx, a); !errors.Is(err, stop) || l.state() != was {
		t.Error("Do's error did not stop the apply:", err)
	}
	l.sound()
	called := false
	a.Do = func(_ Applied, write func() error) error { called = true; return write() }
	if done, err := r.Apply(ctx, a); err != nil || !called || string(done.New) != l.run(l.top, "rev-parse", "HEAD") {
		t.Error(done, err)
	}
	l.sound()
}

func TestParsePerson(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]Person{"Ada Lovelace <ada@example.org>": {"Ada Lovelace", "ada@example.org"},
		" A <a@b> ": {"A", "a@b"}} {
		if p, err := ParsePerson(s); p != want || err != nil {
			t.Errorf("%q: %+v, %v", s, p, err)
		}
	}
	for _, s := range []string{"", "me", "<a@b>", "A <a@b", "A <a@b> x", "A <>", "A\nB <a@b>", "A <a<b>"} {
		if p, err := ParsePerson(s); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %+v, %v", s, p, err)
		}
	}
	for p, ok := range map[string]bool{"a/b": true, "../a": false, ".git/config": false, "a\x00": false,
		"": false, "/a": false} {
		if err := CheckPath(p); (err == nil) != ok {
			t.Errorf("%q: %v", p, err)
		}
	}
}

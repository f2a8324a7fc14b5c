package repo

import (
	"bytes"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

const record = Ref("refs/coppice/proposals/fix")

func files(texts ...string) (all []File) {
	for i := 0; i < len(texts); i += 2 {
		all = append(all, File{Name: texts[i], Content: strings.NewReader(texts[i+1])})
	}
	return all
}

func TestRecord_IsCommitOfFiles(t *testing.T) {
	t.Parallel()
	for _, format := range []Format{SHA1, SHA256} {
		l := newLab(t, format)
		r := l.open()
		first, err := r.Record(ctx,
			Record{Files: files("z.md", "report\n", "a.json", "{}\n"), Message: "propose fix", To: record})
		if err != nil {
			t.Fatal(err)
		}
		second, err := r.Record(ctx,
			Record{Files: files("a.json", "{\"n\": 2}\n"), Message: "again", Parents: []OID{first}, To: record, Old: first})
		if err != nil {
			t.Fatal(err)
		}
		if got := l.run(l.top, "log", "--format=%an %ae %s",
			string(record)); got != "User user@example.org again\nUser user@example.org propose fix" {
			t.Error(got)
		}
		if got := l.run(l.top, "show", string(first)+":z.md"); got != "report" {
			t.Error(got)
		}
		sizes, err := r.ReadRecord(ctx, first)
		if err != nil || len(sizes) != 2 || sizes["z.md"] != 7 || sizes["a.json"] != 3 {
			t.Error(sizes, err)
		}
		var b bytes.Buffer
		if err := r.ReadFile(ctx, second, "a.json", 100, &b); err != nil || b.String() != "{\"n\": 2}\n" {
			t.Errorf("%q, %v", b.String(), err)
		}
		parents, err := r.Parents(ctx, second)
		if err != nil || len(parents) != 1 || parents[0] != first {
			t.Error(parents, err)
		}
		l.sound()
	}
}

func TestRecord_RefusedLeavesNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	first, err := r.Record(ctx, Record{Files: files("a", "1"), Message: "one", To: record})
	if err != nil {
		t.Fatal(err)
	}
	before := l.state()
	for name, tt := range map[string]struct {
		rec  Record
		kind fault.Kind
	}{
		"it is there already": {Record{Files: files("a", "2"), Message: "m", To: record}, fault.Conflict},
		"it has moved":        {Record{Files: files("a", "2"), Message: "m", To: record, Old: r.Head.Commit}, fault.Conflict},
		"checked out": {Record{Files: files("a", "2"), Message: "m", To: r.Head.Branch, Old: r.Head.Commit},
			fault.Conflict},
		"no message": {Record{Files: files("a", "2"), Message: " ", To: record, Old: first}, fault.Invalid},
		"a name twice": {Record{Files: files("a", "2", "a", "3"), Message: "m", To: record, Old: first},
			fault.Invalid},
		"a path":    {Record{Files: files("a/b", "2"), Message: "m", To: record, Old: first}, fault.Invalid},
		"git's own": {Record{Files: files(".git", "2"), Message: "m", To: record, Old: first}, fault.Invalid},
		"a forged author": {
			Record{Files: files("a", "2"), Message: "m", To: record, Old: first, Author: Person{"x\nparent y", "e@x"}},
			fault.Invalid},
		"no reference": {Record{Files: files("a", "2"), Message: "m", To: "HEAD"}, fault.Invalid},
	} {
		if _, err := r.Record(ctx, tt.rec); !fault.Is(err, tt.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := l.state(); after != before {
		t.Errorf("%s\nwas\n%s", after, before)
	}
	l.sound()
}

func TestReadRecord_RefusesOtherCommits(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	if _, err := r.ReadRecord(ctx, r.Head.Commit); !fault.Is(err, fault.Invalid) { // its tree has a directory
		t.Error(err)
	}
	var b bytes.Buffer
	for name, kind := range map[string]fault.Kind{"nothing": fault.NotFound, "dir": fault.Invalid, "../x": fault.Invalid,
		".git": fault.Invalid, "a.txt": fault.Invalid} {
		if err := r.ReadFile(ctx, r.Head.Commit, name, 3, &b); !fault.Is(err, kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l.sound()
}

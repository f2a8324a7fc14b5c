package repo

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestAccept_ImportsCommits(t *testing.T) {
	t.Parallel()
	for _, f := range []Format{SHA1, SHA256} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, f)
			r, dir := l.open(), l.sandbox()
			l.file(dir, "a.txt", "one\ntwo, changed\nthree\n")
			first := l.commit(dir, "change")
			got := l.accept(r, dir)
			if got.Tip != first || got.Commits != 1 || got.Objects != 3 {
				t.Errorf("accepted %+v, want %s with 3 objects", got, first)
			}
			l.file(dir, "dir/new.txt", "new\n")
			second := l.commit(dir, "more")
			again, err := r.Accept(ctx,
				Accept{Bundle: bytes.NewReader(l.bundle(dir, "coppice/fix", "^"+string(first))), Ref: fix, Base: r.Head.Commit,
					Have: []OID{first}, To: fix, Old: first, Message: "again"})
			if err != nil || again.Tip != second || again.Commits != 1 {
				t.Errorf("the second time %+v, %v", again, err)
			}
			if log := l.run(l.top, "log", "-g", "--format=%gs", string(fix)); log != "again\naccept" {
				t.Errorf("the reflog is %q", log)
			}
			if l.run(l.top, "show", "coppice/fix:dir/new.txt") != "new" {
				t.Error("the file is missing")
			}
			l.sound()
		})
	}
}

// hostileObject writes an object without any check by git.
func (l *lab) hostileObject(dir, kind string, content []byte) OID {
	l.t.Helper()
	out, err := l.try(dir, content, "hash-object", "-t", kind, "-w", "--literally", "--stdin")
	if err != nil {
		l.t.Fatal(err, out)
	}
	return OID(strings.TrimSpace(out))
}

// treeOf returns the content of a tree with the entries in the given order.
func treeOf(entries ...treeEntry) []byte {
	var b bytes.Buffer
	for _, e := range entries {
		fmt.Fprintf(&b, "%s %s\x00", e.mode, e.name)
		for i := 0; i < len(e.id); i += 2 {
			var c byte
			fmt.Sscanf(string(e.id[i:i+2]), "%02x", &c)
			b.WriteByte(c)
		}
	}
	return b.Bytes()
}

type treeEntry struct {
	mode, name string
	id         OID
}

// commitTree commits a tree on top of the sandbox's branch, and moves the branch to the commit.
func (l *lab) commitTree(dir string, tree OID) {
	l.t.Helper()
	id := l.hostileObject(dir, "commit",
		commitObject(tree, []OID{OID(l.run(dir, "rev-parse", "HEAD"))}, "a <a@b> 1 +0000", "a <a@b> 1 +0000", "hostile\n"))
	l.run(dir, "update-ref", "refs/heads/coppice/fix", string(id))
}

// reasons are parts of the expected errors, where more than one check could refuse the input.
var reasons = map[string]string{
	"a missing blob": "ababab",
	"a missing tree": "ababab",
	"an object of the user's that it only has the name of": "is not in the bundle",
	"a delta on an object of the user's":                   "did not receive",
	"an object of 10 GB":                                   "git rejects an object",
	"a .git directory":                                     "hasDotgit",
}

// TestAccept_RefusesHostileObjects accepts what a hostile sandbox might send. The user's repository must not
// change.
func TestAccept_RefusesHostileObjects(t *testing.T) {
	t.Parallel()
	blobTree := func(mode, name string) func(*lab, string) []byte {
		return func(l *lab, dir string) []byte {
			blob := l.hostileObject(dir, "blob", []byte("[core]\n\tfsmonitor = touch /tmp/x\n"))
			l.commitTree(dir, l.hostileObject(dir, "tree", treeOf(treeEntry{mode, name, blob})))
			return nil
		}
	}
	dirTree := func(name string) func(*lab, string) []byte {
		return func(l *lab, dir string) []byte {
			blob := l.hostileObject(dir, "blob", []byte("x"))
			sub := l.hostileObject(dir, "tree", treeOf(treeEntry{"100644", "config", blob}))
			l.commitTree(dir, l.hostileObject(dir, "tree", treeOf(treeEntry{"40000", name, sub})))
			return nil
		}
	}
	for name, make := range map[string]func(l *lab, dir string) []byte{
		"a .git file":                   blobTree("100644", ".git"),
		"a .git directory":              dirTree(".git"),
		"a .GIT directory":              dirTree(".GIT"),
		"a .git below":                  blobTree("100644", ".giT"),
		"a short name":                  dirTree("git~1"),
		"a short name in capitals":      dirTree("GIT~1"),
		"a name with what is not seen":  dirTree(".g\u200cit"),
		"a name with a mark at its end": dirTree(".git\ufeff"),
		"a name with a space":           dirTree(".git "),
		"a name with a dot":             dirTree(".git."),
		"a name with dots and spaces":   dirTree(".git . ."),
		"a stream":                      dirTree(".git::$INDEX_ALLOCATION"),
		"a name of a backslash":         blobTree("100644", `sub\.git\config`),
		"dot dot":                       dirTree(".."),
		"dot":                           dirTree("."),
		"no name": func(l *lab, dir string) []byte {
			blob := l.hostileObject(dir, "blob", []byte("x"))
			tree := l.hostileObject(dir, "tree", treeOf(treeEntry{"100644", "", blob}))
			l.commitTree(dir, tree)
			return l.packOf(dir, l.run(dir, "rev-parse", "HEAD"), string(tree), string(blob))
		},
		"a slash":                blobTree("100644", "a/b"),
		"a mode that is none":    blobTree("100666", "x"),
		"a device":               blobTree("60000", "x"),
		"a link for .gitmodules": blobTree("120000", ".gitmodules"),
		"entries out of order": func(l *lab, dir string) []byte {
			blob := l.hostileObject(dir, "blob", []byte("x"))
			l.commitTree(dir,
				l.hostileObject(dir, "tree", treeOf(treeEntry{"100644", "b", blob}, treeEntry{"100644", "a", blob})))
			return nil
		},
		"an entry twice": func(l *lab, dir string) []byte {
			blob := l.hostileObject(dir, "blob", []byte("x"))
			link := l.hostileObject(dir, "blob", []byte("/etc"))
			sub := l.hostileObject(dir, "tree", treeOf(treeEntry{"100644", "passwd", blob}))
			l.commitTree(dir, l.hostileObject(dir, "tree", treeOf(treeEntry{"120000", "a", link}, treeEntry{"40000", "a", sub})))
			return nil
		},
		"a submodule's URL that is an option": func(l *lab, dir string) []byte {
			blob := l.hostileObject(dir, "blob", []byte("[submodule \"x\"]\n\tpath = x\n\turl = -u./payload\n"))
			l.commitTree(dir, l.hostileObject(dir, "tree", treeOf(treeEntry{"100644", ".gitmodules", blob})))
			return nil
		},
		"a submodule's name that climbs": func(l *lab, dir string) []byte {
			blob := l.hostileObject(dir, "blob", []byte("[submodule \"../../hooks\"]\n\tpath = x\n\turl = a\n"))
			l.commitTree(dir, l.hostileObject(dir, "tree", treeOf(treeEntry{"100644", ".gitmodules", blob})))
			return nil
		},
		"a submodule's command": func(l *lab, dir string) []byte {
			blob := l.hostileObject(dir, "blob", []byte("[submodule \"x\"]\n\tpath = x\n\turl = a\n\tupdate = !touch /tmp/x\n"))
			l.commitTree(dir, l.hostileObject(dir, "tree", treeOf(treeEntry{"100644", ".gitmodules", blob})))
			return nil
		},
		"a commit with a NUL": func(l *lab, dir string) []byte {
			tree := OID(l.run(dir, "rev-parse", "HEAD^{tree}"))
			id := l.hostileObject(dir, "commit",
				commitObject(tree, []OID{OID(l.run(dir, "rev-parse", "HEAD"))}, "a <a@b> 1 +0000", "a <a@b> 1 +0000", "a\x00b\n"))
			l.run(dir, "update-ref", "refs/heads/coppice/fix", string(id))
			return nil
		},
		"a tip that is a tree": func(l *lab, dir string) []byte {
			b := l.bundle(dir, "coppice/fix", "^main")
			tip, tree := l.run(dir, "rev-parse", "HEAD"), l.run(dir, "rev-parse", "HEAD^{tree}")
			return bytes.Replace(b, []byte(tip), []byte(tree), 1)
		},
		"a tip that did not come": func(l *lab, dir string) []byte {
			b := l.bundle(dir, "coppice/fix", "^main")
			return bytes.Replace(b, []byte(l.run(dir, "rev-parse", "HEAD")), []byte(strings.Repeat("ab", 20)), 1)
		},
		"a missing blob": func(l *lab, dir string) []byte {
			l.commitTree(dir, l.hostileObject(dir, "tree", treeOf(treeEntry{"100644", "x", OID(strings.Repeat("ab", 20))})))
			return l.packOf(dir, l.run(dir, "rev-parse", "HEAD"), l.run(dir, "rev-parse", "HEAD^{tree}"))
		},
		"a missing tree": func(l *lab, dir string) []byte {
			l.commitTree(dir, OID(strings.Repeat("ab", 20)))
			return l.packOf(dir, l.run(dir, "rev-parse", "HEAD"))
		},
		"an object of the user's that it only has the name of": func(l *lab, dir string) []byte {
			id := l.privateBlob()
			l.commitTree(dir, l.hostileObject(dir, "tree", treeOf(treeEntry{"100644", "x", id})))
			return l.packOf(dir, l.run(dir, "rev-parse", "HEAD"), l.run(dir, "rev-parse", "HEAD^{tree}"))
		},
		"a delta on an object of the user's": func(l *lab, dir string) []byte {
			id := l.privateBlob()
			want := gitHash(l, "blob", append(bytes.Repeat([]byte("private "), 20), 'x'))
			l.commitTree(dir, l.hostileObject(dir, "tree", treeOf(treeEntry{"100644", "x", want})))
			// The delta copies the 160 bytes of the base, and appends an x.
			delta := []byte{0xa0, 0x01, 0xa1, 0x01, 0x90, 0xa0, 0x01, 'x'}
			return l.packWith(dir, id, delta, l.run(dir, "rev-parse", "HEAD"), l.run(dir, "rev-parse", "HEAD^{tree}"))
		},
		"cut short": func(l *lab, dir string) []byte { b := l.bundle(dir, "coppice/fix", "^main"); return b[:len(b)-10] },
		"a changed byte": func(l *lab, dir string) []byte {
			b := l.bundle(dir, "coppice/fix", "^main")
			b[len(b)-30] ^= 1
			return b
		},
		"nothing":  func(*lab, string) []byte { return []byte{} },
		"a filter": func(*lab, string) []byte { return []byte("# v3 git bundle\n@filter=blob:none\n\nPACK") },
		"an object of 10 GB": func(l *lab, dir string) []byte {
			b := l.bundle(dir, "coppice/fix", "^main")
			at := bytes.Index(b, []byte("PACK"))
			// A blob whose header says 10 GB, with an unfinished stream.
			return append(b[:at+12:at+12], 0xb0, 0x80, 0x80, 0x80, 0xd0, 0x12, 0x78, 0x9c)
		},
		"four billion objects": func(l *lab, dir string) []byte {
			b := l.bundle(dir, "coppice/fix", "^main")
			binary.BigEndian.PutUint32(b[bytes.Index(b, []byte("PACK"))+8:], 1<<32-1)
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, SHA1)
			r, dir := l.open(), l.sandbox()
			l.commit(dir, "harmless")
			b := make(l, dir)
			if b == nil {
				b = l.bundle(dir, "coppice/fix", "^main")
			}
			before := l.state()
			_, err := r.Accept(ctx,
				Accept{Bundle: bytes.NewReader(b), Ref: fix, Base: r.Head.Commit, To: fix, Message: "accept"})
			if !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.Unsupported) {
				t.Errorf("accepted: %v", err)
			}
			if why := reasons[name]; err != nil && !strings.Contains(err.Error(), why) {
				t.Errorf("refused, but not because %q: %v", why, err)
			}
			if now := l.state(); now != before {
				t.Errorf("the repository was\n%s\nand is\n%s", before, now)
			}
			l.sound()
		})
	}
}

// privateBlob writes an object of the user that the sandbox never received.
func (l *lab) privateBlob() OID {
	return l.hostileObject(l.top, "blob", bytes.Repeat([]byte("private "), 20))
}

// gitHash returns the ID of an object without writing it.
func gitHash(l *lab, kind string, content []byte) OID {
	out, err := l.try(l.top, content, "hash-object", "-t", kind, "--stdin")
	if err != nil {
		l.t.Fatal(err)
	}
	return OID(strings.TrimSpace(out))
}

// packOf returns a bundle of the sandbox's branch whose pack has only the given objects.
func (l *lab) packOf(dir string, ids ...string) []byte {
	l.t.Helper()
	ids = append(ids, l.run(dir, "rev-parse", "HEAD^"))
	out, err := l.try(dir, []byte(strings.Join(ids, "\n")+"\n"), "pack-objects", "-q", "--stdout")
	if err != nil {
		l.t.Fatal(err, out)
	}
	return append([]byte(fmt.Sprintf("# v2 git bundle\n%s %s\n\n", l.run(dir, "rev-parse", "HEAD"), fix)), out...)
}

// packWith is packOf with one more object, a delta whose base is not in the pack.
func (l *lab) packWith(dir string, base OID, delta []byte, ids ...string) []byte {
	l.t.Helper()
	b := l.packOf(dir, ids...)
	at := bytes.Index(b, []byte("PACK"))
	pack := b[at : len(b)-20]
	binary.BigEndian.PutUint32(pack[8:], binary.BigEndian.Uint32(pack[8:])+1)
	pack = append(pack, byte(7<<4|len(delta)))
	for i := 0; i < len(base); i += 2 {
		var c byte
		fmt.Sscanf(string(base[i:i+2]), "%02x", &c)
		pack = append(pack, c)
	}
	pack = append(pack, deflate(delta)...)
	return append(b[:at:at], append(pack, sha1sum(pack)...)...)
}

func TestAccept_RefusesMovedReference(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	l.commit(dir, "change")
	l.run(l.top, "branch", "coppice/fix")
	b := l.bundle(dir, "coppice/fix", "^main")
	before := l.state()
	_, err := r.Accept(ctx, Accept{Bundle: bytes.NewReader(b), Ref: fix, Base: r.Head.Commit, To: fix, Message: "accept"})
	if !fault.Is(err, fault.Conflict) {
		t.Errorf("a branch that already exists: %v", err)
	}
	if l.state() != before {
		t.Error("something was written")
	}
	l.run(l.top, "switch", "-q", "coppice/fix")
	_, err = r.Accept(ctx,
		Accept{Bundle: bytes.NewReader(b), Ref: fix, Base: r.Head.Commit, To: fix, Old: r.Head.Commit, Message: "accept"})
	if !fault.Is(err, fault.Conflict) {
		t.Errorf("a branch that is checked out: %v", err)
	}
	if l.run(l.top, "rev-parse", "HEAD") != string(r.Head.Commit) {
		t.Error("the branch moved")
	}
	l.sound()
}

func TestAccept_EnforcesLimits(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	l.file(dir, "zeros", strings.Repeat("\x00", 1<<20))
	for i := range 50 {
		l.file(dir, fmt.Sprintf("many/%d", i), fmt.Sprint(i))
	}
	l.commit(dir, "large")
	b := l.bundle(dir, "coppice/fix", "^main")
	for name, limits := range map[string]Limits{
		"input": {Input: 1000}, "objects": {Objects: 10}, "object": {Object: 1 << 19}, "total": {Total: 1 << 19},
		"changes": {Changes: 10},
	} {
		r.opt.Limits = limits.or(DefaultLimits)
		if _, err := r.Accept(ctx,
			Accept{Bundle: bytes.NewReader(b), Ref: fix, Base: r.Head.Commit, To: fix}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.opt.Limits = DefaultLimits
	if _, err := r.Accept(ctx, Accept{Bundle: bytes.NewReader(b), Ref: fix, Base: r.Head.Commit, To: fix}); err != nil {
		t.Error(err)
	}
	l.sound()
}

// TestHugeTrees checks that a deep tree and a wide one are either refused, or accepted within the limits.
func TestHugeTrees(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	var deep strings.Builder
	fmt.Fprintf(&deep,
		"commit refs/heads/coppice/fix\ncommitter a <a@b> 1 +0000\ndata 5\ndeep\n\nM 100644 inline %s\ndata 1\nx\ndone\n",
		strings.Repeat("d/", 10_000)+"f")
	if out, err := l.try(dir, []byte(deep.String()), "fast-import", "--quiet", "--force", "--done"); err != nil {
		t.Fatal(err, out)
	}
	_, err := r.Accept(ctx,
		Accept{Bundle: bytes.NewReader(l.bundle(dir, "coppice/fix", "^main")), Ref: fix, Base: r.Head.Commit, To: fix})
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("10,000 directories deep: %v", err)
	}
	blob := l.hostileObject(dir, "blob", []byte("x"))
	var wide []treeEntry
	for i := range 100_000 {
		wide = append(wide, treeEntry{"100644", fmt.Sprintf("%06d", i), blob})
	}
	l.commitTree(dir, l.hostileObject(dir, "tree", treeOf(wide...)))
	r.opt.Limits.Changes = 50_000
	_, err = r.Accept(ctx,
		Accept{Bundle: bytes.NewReader(l.bundle(dir, "coppice/fix", "^main")), Ref: fix, Base: r.Head.Commit, To: fix})
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("100,000 entries: %v", err)
	}
	l.sound()
}

func TestShallowRepository_AcceptsAndApplies(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	l.file(l.top, "a.txt", "another\n")
	l.commit(l.top, "second")
	cut := filepath.Join(t.TempDir(), "cut")
	l.run(l.top, "clone", "-q", "--depth=1", "file://"+l.top, cut)
	l.top = cut
	r, dir := l.open(), filepath.Join(t.TempDir(), "inside")
	if !r.Shallow {
		t.Fatal("not shallow")
	}
	if err := os.CopyFS(dir, os.DirFS(cut)); err != nil {
		t.Fatal(err)
	}
	l.run(dir, "checkout", "-q", "-b", "coppice/fix")
	l.file(dir, "c.txt", "c\n")
	l.commit(dir, "change")
	got := l.accept(r, dir)
	if _, err := r.Apply(ctx, Apply{Base: r.Head.Commit, Tip: got.Tip, Way: Squash, Message: "c"}); err != nil {
		t.Fatal(err)
	}
	l.sound()
}

package repo

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// attack changes a sandbox's repository so that the host's git would run a program of the sandbox. The test
// verifies that plain git runs it, where git is still vulnerable.
type attack struct {
	name string
	// do prepares the sandbox's work tree. payload is a program that leaves a trace.
	do func(l *lab, dir, payload string)
	// plain is a git command that would run the payload if it ran in the sandbox's work tree; nil where git is no
	// longer vulnerable.
	plain []string
}

// config appends lines to the sandbox's own configuration.
func config(lines string) func(l *lab, dir, payload string) {
	return func(l *lab, dir, payload string) {
		name := filepath.Join(dir, ".git/config")
		b, err := os.ReadFile(name)
		if err != nil {
			l.t.Fatal(err)
		}
		l.file(dir, ".git/config", string(b)+strings.ReplaceAll(lines, "PAYLOAD", payload))
	}
}

// with adds attributes to an attack.
func with(attributes string, do func(l *lab, dir, payload string)) func(l *lab, dir, payload string) {
	return func(l *lab, dir, payload string) {
		l.file(dir, ".gitattributes", attributes)
		do(l, dir, payload)
	}
}

var attacks = []attack{
	{"core.fsmonitor", config("[core]\n\tfsmonitor = PAYLOAD\n"), []string{"status"}},
	{"core.hooksPath", func(l *lab, dir, payload string) {
		for _, h := range []string{"post-checkout", "reference-transaction", "post-index-change", "pre-commit", "post-merge",
			"applypatch-msg"} {
			l.program(dir, "evil/"+h, "#!/bin/sh\n"+payload+"\n")
		}
		config("[core]\n\thooksPath = "+dir+"/evil\n")(l, dir, payload)
	}, []string{"checkout", "-q", "-b", "x"}},
	{"hooks", func(l *lab, dir, payload string) {
		for _, h := range []string{"post-checkout", "reference-transaction", "post-index-change"} {
			l.program(dir, ".git/hooks/"+h, "#!/bin/sh\n"+payload+"\n")
		}
	}, []string{"checkout", "-q", "-b", "x"}},
	{"core.sshCommand", config("[core]\n\tsshCommand = PAYLOAD\n[remote \"evil\"]\n\turl = ssh://x/y\n"),
		[]string{"fetch", "evil"}},
	{"ext:: remote", config("[protocol]\n\tallow = always\n[remote \"evil\"]\n\turl = ext::PAYLOAD\n"),
		[]string{"fetch", "evil"}},
	{"core.pager", config("[core]\n\tpager = PAYLOAD\n[pager]\n\tdiff = PAYLOAD\n"), nil},
	{"core.editor", config("[core]\n\teditor = PAYLOAD\n"), []string{"commit", "--allow-empty"}},
	{"core.askPass", config("[core]\n\taskPass = PAYLOAD\n[credential]\n\thelper = !PAYLOAD\n"),
		[]string{"credential", "fill"}},
	{"core.alternateRefsCommand", func(l *lab, dir, payload string) {
		l.file(dir, ".git/objects/info/alternates", filepath.Join(l.top, ".git/objects")+"\n")
		config("[core]\n\talternateRefsCommand = PAYLOAD\n")(l, dir, payload)
	}, []string{"fetch", "."}},
	{"diff.external", config("[diff]\n\texternal = PAYLOAD\n"), []string{"diff", "main"}},
	{"a diff driver", with("* diff=evil\n", config("[diff \"evil\"]\n\tcommand = PAYLOAD\n")), []string{"diff", "main"}},
	{"textconv", with("* diff=evil\n", config("[diff \"evil\"]\n\ttextconv = PAYLOAD\n")), []string{"diff", "main"}},
	{"a clean filter", with("* filter=evil\n", config("[filter \"evil\"]\n\tclean = PAYLOAD\n")),
		[]string{"add", "-A", "--renormalize"}},
	{"a smudge filter", with("* filter=evil\n", config("[filter \"evil\"]\n\tsmudge = PAYLOAD\n")),
		[]string{"checkout", "main", "--", "a.txt"}},
	{"a filter process", with("* filter=evil\n", config("[filter \"evil\"]\n\tprocess = PAYLOAD\n\trequired = true\n")),
		[]string{"checkout", "main", "--", "a.txt"}},
	{"a merge driver", with("* merge=evil\n", config("[merge \"evil\"]\n\tdriver = PAYLOAD\n")), nil},
	{"core.attributesFile", func(l *lab, dir, payload string) {
		l.file(dir, "attributes", "* diff=evil\n")
		config("[core]\n\tattributesFile = "+dir+"/attributes\n[diff \"evil\"]\n\ttextconv = PAYLOAD\n")(l, dir, payload)
	}, []string{"diff", "main"}},
	{"info/attributes", func(l *lab, dir, payload string) {
		l.file(dir, ".git/info/attributes", "* diff=evil\n")
		config("[diff \"evil\"]\n\ttextconv = PAYLOAD\n")(l, dir, payload)
	}, []string{"diff", "main"}},
	{"gpg.program", config("[gpg]\n\tprogram = PAYLOAD\n[commit]\n\tgpgSign = true\n[log]\n\tshowSignature = true\n"),
		[]string{"commit", "--allow-empty", "-m", "x"}},
	{"an alias", config("[alias]\n\tdiff-tree = !PAYLOAD\n\tst = !PAYLOAD\n"), []string{"st"}},
	{"include.path", func(l *lab, dir, payload string) {
		l.file(dir, "included", "[core]\n\tfsmonitor = "+payload+"\n")
		config("[include]\n\tpath = "+dir+"/included\n")(l, dir, payload)
	}, []string{"status"}},
	{"config.worktree", func(l *lab, dir, payload string) {
		l.file(dir, ".git/config.worktree", "[core]\n\tfsmonitor = "+payload+"\n")
		config("[extensions]\n\tworktreeConfig = true\n")(l, dir, payload)
	}, []string{"status"}},
	{"a rewritten .git file", func(l *lab, dir, payload string) {
		evil := filepath.Join(dir, "evil.git")
		os.Rename(filepath.Join(dir, ".git"), evil)
		l.file(dir, ".git", "gitdir: "+evil+"\n")
		l.run(dir, "config", "core.fsmonitor", payload)
	}, []string{"status"}},
	{"a .git that is a link to the user's", func(l *lab, dir, payload string) {
		os.Rename(filepath.Join(dir, ".git"), filepath.Join(dir, "..", "put-away"))
		os.Symlink(filepath.Join(l.top, ".git"), filepath.Join(dir, ".git"))
	}, nil},
	{"commondir", func(l *lab, dir, payload string) {
		evil := filepath.Join(dir, "common")
		os.CopyFS(evil, os.DirFS(filepath.Join(dir, ".git")))
		l.run(dir, "--git-dir="+evil, "config", "core.fsmonitor", payload)
		l.file(dir, ".git/commondir", evil+"\n")
	}, []string{"status"}},
	{"alternates", func(l *lab, dir, payload string) {
		l.file(dir, ".git/objects/info/alternates", "/proc/self/root\n"+filepath.Join(l.top, ".git/objects")+"\n")
		l.file(dir, ".git/objects/info/http-alternates", "http://127.0.0.1:1/\n")
	}, nil},
	{"replaced objects", func(l *lab, dir, payload string) {
		l.run(dir, "replace", "-f", l.run(dir, "rev-parse", "main:a.txt"), l.run(dir, "rev-parse", "main:dir/b.txt"))
	}, nil},
	{"grafts", func(l *lab, dir, payload string) {
		l.file(dir, ".git/info/grafts", l.run(dir, "rev-parse", "main")+"\n")
	}, nil},
	{"submodule URLs", func(l *lab, dir, payload string) {
		l.file(dir, ".gitmodules", "[submodule \"evil\"]\n\tpath = evil\n\turl = ext::sh -c "+payload+"\n")
		l.run(dir, "update-index", "--add", "--cacheinfo", "160000,"+l.run(dir, "rev-parse", "main")+",evil")
		config("[submodule \"evil\"]\n\turl = ext::sh -c PAYLOAD\n\tactive = true\n\tupdate = "+
			"!PAYLOAD\n[submodule]\n\trecurse = true\n[protocol]\n\tallow = always\n")(l, dir, payload)
	}, nil},
	{"a bare repository within", func(l *lab, dir, payload string) {
		l.run(dir, "init", "-q", "--bare", "within")
		l.file(dir, "within/config",
			"[core]\n\tbare = false\n\tworktree = "+dir+"\n\trepositoryformatversion = 0\n\tfsmonitor = "+payload+"\n")
	}, nil},
	{"uploadpack.packObjectsHook", config("[uploadpack]\n\tpackObjectsHook = PAYLOAD\n"), nil},
	{"a promisor",
		config("[extensions]\n\tpartialClone = evil\n[core]\n\trepositoryformatversion = 1\n[remote \"evil\"]\n\tpromisor " +
			"= true\n\turl = ext::PAYLOAD\n[protocol]\n\tallow = always\n"),
		[]string{"cat-file", "-p", strings.Repeat("ab", 20)}},
}

// TestKnownAttacks_RunNothing runs everything that the host does with a sandbox against each attack, and checks
// that nothing from the sandbox is executed. Only the bundle is made by the sandbox's own git, which stands for
// git inside.
func TestKnownAttacks_RunNothing(t *testing.T) {
	t.Parallel()
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, SHA1)
			l.file(l.top, "theirs", "t\n")
			r, dir := l.open(), l.sandbox()
			trace := filepath.Join(t.TempDir(), "trace")
			payload := l.program(filepath.Dir(trace), "payload", "#!/bin/sh\ntouch "+trace+"\n")
			l.file(dir, "a.txt", "ONE\ntwo\nthree\n")
			l.file(dir, "b.txt", "b\n")
			l.commit(dir, "harmless")
			b := l.bundle(dir, "coppice/fix", "^"+string(r.Head.Commit))
			a.do(l, dir, payload)
			l.everything(r, dir, b)
			if _, err := os.Stat(trace); err == nil {
				t.Error("the payload ran")
			}
			os.Remove(trace)
			if a.plain != nil {
				l.file(dir, "a.txt", "two changes\n")
				out, _ := l.try(dir, []byte("url=http://x/\n"), a.plain...)
				if _, err := os.Stat(trace); err != nil {
					t.Errorf("git %q does not run the payload either, so the test proves nothing: %s", a.plain, out)
				}
			}
			l.sound()
		})
	}
}

// everything runs all that the host does with a sandbox.
func (l *lab) everything(r *Repo, dir string, bundle []byte) {
	l.t.Helper()
	base := r.Head.Commit
	got, err := r.Accept(ctx, Accept{Bundle: bytes.NewReader(bundle), Ref: fix, Base: base, To: fix, Message: "accept"})
	if err != nil {
		l.t.Fatal(err)
	}
	snap := l.mustSnapshot(r, dir, nil)
	for _, tip := range []OID{got.Tip, snap.Commit} {
		o := DiffOptions{From: base, To: tip, Renames: true, Stat: true}
		changes, err := r.Diff(ctx, o)
		if err != nil {
			l.t.Fatal(err)
		}
		if _, err := r.Marks(ctx, changes); err != nil {
			l.t.Fatal(err)
		}
		if err := r.Patch(ctx, o, io.Discard); err != nil {
			l.t.Fatal(err)
		}
	}
	l.file(l.top, "theirs", "changed\n")
	l.commit(l.top, "theirs")
	for _, a := range []Apply{{Tip: got.Tip, Way: Merge}, {Tip: snap.Commit, Way: Squash}} {
		a.Base, a.Message, a.TrustAll = base, "m", true
		if _, err := r.Apply(ctx, a); err != nil && !fault.Is(err, fault.Invalid) {
			l.t.Fatal(err)
		}
	}
}

// TestUserConfig_RunsNoPrograms runs the known attacks with the user's own git: the user's configuration
// applies, but no hook runs, nothing is fetched, and no program except filters is started.
func TestUserConfig_RunsNoPrograms(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	l.file(dir, "a.txt", "ONE\ntwo\nthree\n")
	l.file(dir, ".gitattributes", "* diff=mine merge=mine\n")
	l.commit(dir, "harmless")
	b := l.bundle(dir, "coppice/fix", "^"+string(r.Head.Commit))
	trace := filepath.Join(t.TempDir(), "trace")
	payload := l.program(filepath.Dir(trace), "payload", "#!/bin/sh\necho \"$0 $@\" >>"+trace+"\n")
	for _, h := range []string{"post-checkout", "reference-transaction", "post-index-change", "post-merge", "pre-auto-gc",
		"post-rewrite"} {
		l.program(l.top, ".git/hooks/"+h, "#!/bin/sh\n"+payload+" "+h+"\n")
	}
	r = l.open()
	config("[core]\n\tfsmonitor = PAYLOAD\n\tpager = PAYLOAD\n\teditor = PAYLOAD\n\tsshCommand = "+
		"PAYLOAD\n\talternateRefsCommand = PAYLOAD\n[diff]\n\texternal = PAYLOAD\n[diff \"mine\"]\n\ttextconv = "+
		"PAYLOAD\n\tcommand = PAYLOAD\n[merge \"mine\"]\n\tdriver = PAYLOAD\n[gpg]\n\tprogram = "+
		"PAYLOAD\n[commit]\n\tgpgSign = true\n[trailer \"x\"]\n\tcommand = PAYLOAD\n")(l, l.top, payload)
	moved := l.top
	l.everythingQuiet(r, dir, b)
	l.top = moved
	if b, err := os.ReadFile(trace); err == nil {
		t.Errorf("started: %s", b)
	}
}

// everythingQuiet is everything, without the plain git commands of the test.
func (l *lab) everythingQuiet(r *Repo, dir string, bundle []byte) {
	l.t.Helper()
	base := r.Head.Commit
	got, err := r.Accept(ctx, Accept{Bundle: bytes.NewReader(bundle), Ref: fix, Base: base, To: fix, Message: "accept"})
	if err != nil {
		l.t.Fatal(err)
	}
	tree, err := os.OpenRoot(dir)
	if err != nil {
		l.t.Fatal(err)
	}
	defer tree.Close()
	if _, err := r.Snapshot(ctx,
		Snapshot{Base: base, Tree: tree, Author: Person{"a", "a@b"}, Message: "m", To: state}); err != nil {
		l.t.Fatal(err)
	}
	if err := r.Patch(ctx, DiffOptions{From: base, To: got.Tip}, io.Discard); err != nil {
		l.t.Fatal(err)
	}
	for _, way := range []Way{Squash, Merge} {
		if _, err := r.Apply(ctx, Apply{Base: base, Tip: got.Tip, Way: way, Message: "m", TrustAll: true}); err != nil {
			l.t.Fatal(err)
		}
	}
}

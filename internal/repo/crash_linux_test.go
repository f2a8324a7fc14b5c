package repo

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// dyingWord is argv[0] of the test's binary when it runs die.
const dyingWord = "repo-dying"

// dying is the input of die.
type dying struct {
	Top, Scratch string
	Env          Env
	Apply        Apply
	Mend         bool
	At           int // kill -9 after this many steps; 0: never
}

func TestMain(m *testing.M) {
	if os.Args[0] == dyingWord {
		os.Exit(die())
	}
	os.Exit(m.Run())
}

// die applies, or mends, and prints each step.
func die() int {
	var d dying
	if err := json.NewDecoder(os.Stdin).Decode(&d); err != nil {
		return 2
	}
	g, err := Find(ctx, "", d.Env)
	if err != nil {
		return 2
	}
	r, err := Open(ctx, g, d.Top, Options{Scratch: d.Scratch})
	if err != nil {
		return 2
	}
	n := 0
	r.step = func(name string) {
		fmt.Println(name)
		if n++; n == d.At {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	if d.Mend {
		_, err = r.Mend(ctx)
	} else {
		_, err = r.Apply(ctx, d.Apply)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// dies runs die in a child. It returns the steps, and whether the child was killed.
func (l *lab) dies(d dying) (steps []string, killed bool) {
	l.t.Helper()
	d.Top, d.Scratch, d.Env = l.top, l.scratch, l.git.user
	in, err := json.Marshal(d)
	if err != nil {
		l.t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{dyingWord}, Stdin: strings.NewReader(string(in)),
		Env: os.Environ()}
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		l.t.Fatalf("%v: %s", err, said.String())
	}
	return strings.Fields(string(out)), err != nil
}

// swept removes the desks of killed processes, as the daemon does when it starts.
func (l *lab) swept() {
	l.t.Helper()
	desks, err := filepath.Glob(filepath.Join(l.scratch, "desk-*"))
	if err != nil {
		l.t.Fatal(err)
	}
	for _, d := range desks {
		os.RemoveAll(d)
	}
}

// view returns what the user sees: the branch, its files, and the differences between them.
func (l *lab) view() string {
	l.t.Helper()
	var b strings.Builder
	b.WriteString(l.run(l.top, "rev-parse", "HEAD^{tree}") + "\n" + l.run(l.top, "status", "--porcelain", "--ignored") +
		"\n" + l.run(l.top, "ls-files", "-s") + "\n")
	err := filepath.WalkDir(l.top, func(p string, e os.DirEntry, err error) error {
		if err != nil || e.Name() == ".git" {
			if e.Name() == ".git" {
				return filepath.SkipDir
			}
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text := ""
		switch {
		case info.Mode().IsRegular():
			c, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text = string(c)
		case info.Mode()&os.ModeSymlink != 0:
			text, _ = os.Readlink(p)
		}
		fmt.Fprintf(&b, "%s %s %q\n", strings.TrimPrefix(p, l.top), info.Mode(), text)
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return b.String()
}

// awkward accepts a sandbox's commit that changes the types of files, and replaces directories with links.
func (l *lab) awkward(r *Repo) Accepted {
	l.t.Helper()
	dir := l.sandbox()
	l.file(dir, "a.txt", "ONE\ntwo\nthree\n")
	os.RemoveAll(filepath.Join(dir, "dir"))
	os.Symlink("..", filepath.Join(dir, "dir"))
	os.Remove(filepath.Join(dir, "plain"))
	l.file(dir, "plain/below", "x\n")
	os.Chmod(filepath.Join(dir, "mode"), 0o755)
	os.Remove(filepath.Join(dir, "gone/too"))
	l.file(dir, "new/\xff\n\"x", "new\n")
	l.commit(dir, "awkward")
	return l.accept(r, dir)
}

// TestApply_IsAtomicWhenKilled kills the apply after each step. The branch is always at the old or the new
// commit. After the repair, the whole state is the old or the new one to the byte.
func TestApply_IsAtomicWhenKilled(t *testing.T) {
	t.Parallel()
	for _, way := range []Way{Squash, Patch} {
		for at := 1; at <= 6; at++ {
			t.Run(string(way)+strconv.Itoa(at), func(t *testing.T) {
				t.Parallel()
				l := newLab(t, SHA1)
				l.file(l.top, "plain", "p\n")
				l.file(l.top, "mode", "m\n")
				l.file(l.top, "gone/too", "g\n")
				l.commit(l.top, "second")
				r := l.open()
				work := l.awkward(r)
				l.file(l.top, "theirs", "t\n")
				l.commit(l.top, "theirs")
				a := Apply{Base: r.Head.Commit, Tip: work.Tip, Way: way, Message: "m", TrustAll: true}
				before := l.view()
				steps, killed := l.dies(dying{Apply: a, At: at})
				if !killed || len(steps) != at {
					t.Fatalf("it was not killed; its steps were %q", steps)
				}
				l.swept()
				for mends := 1; mends <= 4; mends++ { // the repair is killed as well
					if _, killed = l.dies(dying{Mend: true, At: mends}); !killed {
						break
					}
					l.swept()
				}
				if saved, err := r.Mend(ctx); err != nil || saved != "" {
					t.Fatal(saved, err)
				}
				l.swept()
				after := l.view()
				done := way == Squash && steps[at-1] == "moved"
				if (after == before) == done {
					t.Errorf("after %q: the state was\n%s\nand is\n%s", steps, before, after)
				}
				if done && (l.run(l.top, "status", "--porcelain") != "" ||
					l.run(l.top, "show", "HEAD:a.txt") != "ONE\ntwo\nthree") {
					t.Errorf("the new state is\n%s", after)
				}
				l.sound()
				if !done {
					if _, err := r.Apply(ctx, a); err != nil {
						t.Fatal("applied again: ", err)
					}
					l.sound()
				}
			})
		}
	}
}

// TestMend_RestoresStateAfterGitIsKilled uses a filter of the user's to kill git and this process while git
// writes files. A partly written file is moved aside, and the old state is restored.
func TestMend_RestoresStateAfterGitIsKilled(t *testing.T) {
	t.Parallel()
	for _, both := range []bool{false, true} {
		t.Run(fmt.Sprint(both), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, SHA1)
			kill := "kill -9 $PPID"
			if both {
				kill = "set -- $(cat /proc/$PPID/stat); kill -9 $4 $PPID"
			}
			bad := l.program(l.home, "smudge", "#!/bin/sh\nif [ -e "+l.home+"/armed ]; then "+kill+"; sleep 9; fi\ncat\n")
			l.run(l.top, "config", "filter.bad.smudge", bad)
			l.file(l.top, ".gitattributes", "*.bad filter=bad\n")
			l.file(l.top, "m.bad", "m\n")
			l.commit(l.top, "attributes")
			r, dir := l.open(), l.sandbox()
			for _, f := range []string{"a.txt", "dir/b.txt", "m.bad", "z.txt"} {
				l.file(dir, f, "changed\n")
			}
			l.commit(dir, "change")
			work := l.accept(r, dir)
			before := l.view()
			l.file(l.home, "armed", "")
			a := Apply{Base: r.Head.Commit, Tip: work.Tip, Way: Squash, Message: "m"}
			if both {
				if steps, killed := l.dies(dying{Apply: a}); !killed {
					t.Fatalf("it was not killed; its steps were %q", steps)
				}
				l.swept()
				// A living child, such as the filter's shell, still holds the lock.
				l.run(l.home, "version")
			} else if _, err := r.Apply(ctx, a); err == nil {
				t.Fatal("it was not killed")
			}
			os.Remove(filepath.Join(l.home, "armed"))
			for {
				_, err := r.Mend(ctx)
				if err == nil {
					break
				}
				if !fault.Is(err, fault.Conflict) {
					t.Fatal(err)
				}
			}
			if after := l.view(); after != before {
				t.Errorf("the state was\n%s\nand is\n%s", before, after)
			}
			l.sound()
		})
	}
}

// TestMend_KeepsUserChanges checks that the user's changes between crash and repair are not lost.
func TestMend_KeepsUserChanges(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	work := l.work(r)
	a := Apply{Base: r.Head.Commit, Tip: work.Tip, Way: Squash, Message: "m"}
	if steps, killed := l.dies(dying{Apply: a, At: 4}); !killed || steps[3] != "checked" {
		t.Fatal(steps)
	}
	l.swept()
	l.file(l.top, "new/file.txt", "the user's\n")
	l.file(l.top, "elsewhere", "the user's, too\n")
	saved, err := r.Mend(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(saved, "new/file.txt")); err != nil || string(b) != "the user's\n" {
		t.Errorf("%q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(l.top, "elsewhere")); err != nil || string(b) != "the user's, too\n" {
		t.Errorf("%q, %v", b, err)
	}
	os.RemoveAll(saved)
	if s := l.run(l.top, "status", "--porcelain"); s != "?? elsewhere" {
		t.Errorf("the status is %q", s)
	}
	l.sound()
}

// TestMend_IgnoresMovedHead covers a user who moved HEAD before the repair: the work tree is not changed.
func TestMend_IgnoresMovedHead(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	work := l.work(r)
	if _, killed := l.dies(
		dying{Apply: Apply{Base: r.Head.Commit, Tip: work.Tip, Way: Squash, Message: "m"}, At: 5}); !killed {
		t.Fatal("not killed")
	}
	l.swept()
	os.Remove(filepath.Join(l.top, ".git/index.lock"))
	l.commit(l.top, "the user's")
	before := l.view()
	if _, err := r.Mend(ctx); err != nil {
		t.Fatal(err)
	}
	if after := l.view(); after != before {
		t.Errorf("the state was\n%s\nand is\n%s", before, after)
	}
	l.sound()
}

func TestApply_ExcludesConcurrentApply(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	work := l.work(r)
	var second error
	r.step = func(name string) {
		if name == "checked" {
			_, second = l.open().Apply(ctx, Apply{Base: r.Head.Commit, Tip: work.Tip, Way: Squash, Message: "m"})
		}
	}
	if _, err := r.Apply(ctx, Apply{Base: r.Head.Commit, Tip: work.Tip, Way: Squash, Message: "m"}); err != nil {
		t.Fatal(err)
	}
	if !fault.Is(second, fault.Conflict) {
		t.Errorf("the second: %v", second)
	}
	l.sound()
}

// TestApply_UndoesFilesOnMovedBranch moves the branch at the last moment. The files and the index are restored.
func TestApply_UndoesFilesOnMovedBranch(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	work := l.work(r)
	other := l.run(l.top, "commit-tree", "-p", "HEAD", "-m", "other", "HEAD^{tree}")
	r.step = func(name string) {
		if name == "indexed" {
			l.run(l.top, "update-ref", "refs/heads/main", other)
		}
	}
	if _, err := r.Apply(ctx,
		Apply{Base: r.Head.Commit, Tip: work.Tip, Way: Squash, Message: "m"}); !fault.Is(err, fault.Conflict) {
		t.Fatal(err)
	}
	if s := l.run(l.top, "status", "--porcelain") + l.run(l.top, "rev-parse", "HEAD"); s != other {
		t.Errorf("the status is %q", s)
	}
	l.sound()
}

// TestMend_RefusesOtherJournalVersion checks that a journal of another version is refused, and that nothing is
// undone.
func TestMend_RefusesOtherJournalVersion(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	name := filepath.Join(l.top, ".git", journalName)
	for text, kind := range map[string]fault.Kind{
		`{"version":2}`: fault.Version, `{`: fault.Version, `{"version":1,"more":1}`: fault.Version,
		`{"version":1,"old":"x","tree":"y"}`: fault.Corrupt, "": fault.Version,
	} {
		l.file(l.top, ".git/"+journalName, text)
		before := l.view()
		if _, err := r.Mend(ctx); !fault.Is(err, kind) {
			t.Errorf("%q: %v", text, err)
		}
		if l.view() != before {
			t.Errorf("with the journal %q the repository was changed", text)
		}
	}
	os.Remove(name)
	l.sound()
}

// TestApplyLock_IsReleasedDespiteInheritedDescriptors checks that the lock is free after the apply although other
// processes may have its descriptor: a program that another goroutine starts has a copy of every descriptor until
// its execve(2), and a leftover process of a filter may keep one.
func TestApplyLock_IsReleasedDespiteInheritedDescriptors(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	work := l.work(r)
	r.step = func(name string) {
		if name == "locked" {
			r.mu.Lock()
			defer r.mu.Unlock()
			fd, err := syscall.Dup(int(r.held.Fd()))
			if err != nil {
				t.Error(err)
			}
			t.Cleanup(func() { syscall.Close(fd) })
		}
	}
	if _, err := r.Apply(ctx, Apply{Base: r.Head.Commit, Tip: work.Tip, Way: Squash, Message: "m"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Mend(ctx); err != nil {
		t.Error(err)
	}
	l.sound()
}

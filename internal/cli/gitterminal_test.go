//go:build linux

package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// gitDesk returns a desk whose sandbox works on a repository, and changed files in it that the host may run.
func gitDesk(t *testing.T) (d *desk, top string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git: for repositories")
	}
	top, err := os.MkdirTemp("/var/tmp", "coppice-terminal-") // a sandbox has its own /tmp
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(top); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(top, "a.txt"), []byte("one\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"config", "user.name", "User"},
		{"config", "user.email", "user@example.org"}, {"add", "-A"}, {"commit", "-qm", "first"}} {
		if out, err := exec.Command("git", append([]string{"-C", top}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
	}
	d = newDesk(t, "--repo", top)
	d.run("exec", sandbox, "--", "sh", "-c",
		`cd "$1" && echo all: >Makefile && printf '\033]0;title\007\n' >a.txt && printf '#!/bin/sh\n' >run && chmod +x run`,
		"sh", top)
	return d, top
}

// TestDiff_UsesPager checks that the pager shows a diff with and without marks, and that it is not an error if the
// user quits it early.
func TestDiff_UsesPager(t *testing.T) {
	t.Parallel()
	d, _ := gitDesk(t)
	env := d.env
	d.env = append(env[:len(env):len(env)], "GIT_PAGER=sed s/^/paged:/")
	term := d.open("diff", sandbox)
	got := term.see("run: \x1b[33mexecutable")
	term.end(0)
	for _, want := range []string{"paged:\x1b[1m\x1b[33m! build: runs when", `+\033]0;title\007`,
		"paged:\x1b[1m\x1b[33mFiles that the host may later run or trust:", "paged:  Makefile: \x1b[33mbuild"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	if strings.Contains(got, "\x1b]0;") {
		t.Error("an escape sequence of the sandbox reached the terminal")
	}
	d.env = append(env[:len(env):len(env)], "GIT_PAGER=true")
	term = d.open("diff", sandbox)
	term.end(0)
	d.env = append(env[:len(env):len(env)], "GIT_PAGER=exit 3")
	term = d.open("diff", sandbox, "--no-pager", "--name-status", "--color=never")
	term.see("A\tMakefile\r\nM\ta.txt\r\nA\trun\r\n")
	term.end(0)
}

// TestApply_AsksForTrust checks that the user is asked about each marked path, and that nothing is applied unless
// they answer yes to all of them.
func TestApply_AsksForTrust(t *testing.T) {
	t.Parallel()
	d, top := gitDesk(t)
	head := func() string {
		out, err := exec.Command("git", "-C", top, "log", "--format=%s", "--name-only").CombinedOutput()
		if err != nil {
			t.Fatal(err, out)
		}
		return string(out)
	}
	was := head()
	for _, answers := range [][]string{{"\r"}, {"n\r"}, {"\x04"}, {"y\r", "perhaps\r"}} {
		term := d.open("git", "apply", sandbox)
		for _, a := range answers {
			term.see("[y/N] ")
			term.enter(a)
		}
		term.see("is not trusted, and nothing was applied")
		term.end(5) // denied
		if head() != was {
			t.Fatalf("after %q: %s", answers, head())
		}
	}
	term := d.open("git", "apply", sandbox, "-m", "It")
	term.see("Makefile: build: ")
	term.see("[y/N] ")
	term.enter("y\r")
	term.see("run: executable: ")
	term.see("[y/N] ")
	// The shown commit is applied, even if the sandbox changes meanwhile.
	d.run("exec", sandbox, "--", "sh", "-c", `echo evil: >"$1/Makefile"`, "sh", top)
	term.enter("yes\r")
	term.see("3 files of box on main")
	term.end(0)
	if text, err := os.ReadFile(filepath.Join(top, "Makefile")); string(text) != "all:\n" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if got := head(); !strings.HasPrefix(got, "It\n\nMakefile\na.txt\nrun\n") {
		t.Error(got)
	}
}

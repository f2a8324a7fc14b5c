//go:build linux

package rootfstest

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/coppice-dev/coppice/internal/rootfs"
)

// secret is the content that must not be readable behind a mask.
const secret = "the owner's alone"

// masked is a step: it searches a directory of a root for secrets, creates its own files at the hidden paths, renames
// directories, and searches again.
func masked(_ string, arg []byte, out io.Writer) error {
	var dir string
	if err := json.Unmarshal(arg, &dir); err != nil {
		return err
	}
	if err := tell(dir, out); err != nil {
		return err
	}
	own := dir + "/.ssh"
	if _, err := os.Lstat(own); err == nil {
		fmt.Fprintln(out, "own: there")
	}
	if err := os.MkdirAll(own+"/deep", 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(own+"/deep/id", []byte("my own"), 0o600); err != nil {
		return err
	}
	if err := os.MkdirAll(dir+"/new/deep", 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(dir+"/keys/mine", []byte("my own"), 0o600); err != nil {
		return err
	}
	if err := os.RemoveAll(dir + "/.config"); err != nil {
		return err
	}
	if err := os.Mkdir(dir+"/.config", 0o700); err != nil {
		return err
	}
	// Even if the kernel permits the rename, the hidden files do not become visible.
	_ = os.Rename(dir+"/keys", dir+"/keys2")
	_ = os.Rename(dir+"/dots", dir+"/dots2")
	return tell(dir, out)
}

// tell lists the entries of a directory, and marks the secret ones.
func tell(dir string, out io.Writer) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return nil
		}
		what := "open"
		switch text, err := os.ReadFile(p); {
		case err != nil:
			what = "nothing" // a link to a directory
		case string(text) == secret:
			what = "SECRET"
		case string(text) == "my own":
			what = "own"
		}
		fmt.Fprintf(out, "%s %s\n", strings.TrimPrefix(p, dir+"/"), what)
		return nil
	})
}

// testMask hides paths of this machine's root.
func testMask(s *suite) {
	if s.drv.Plain() {
		return // testHost: the driver cannot have the host as base
	}
	mine := filepath.Join(filepath.Dir(s.home), "hidden")
	plant := func(name, text string) {
		p := filepath.Join(mine, name)
		must(s.t, os.MkdirAll(filepath.Dir(p), 0o755))
		must(s.t, os.WriteFile(p, []byte(text), 0o600))
	}
	for _, name := range []string{".ssh/id", ".config/gh/hosts.yml", "keys/a", "keys/b/c", "real/id",
		"dots/aws/credentials", "token"} {
		plant(name, secret)
	}
	plant(".config/other", "open")
	plant("dots/other", "open")
	must(s.t, os.Symlink("real", mine+"/linked"))
	must(s.t, os.Symlink(mine+"/dots", mine+"/.dots"))
	must(s.t, os.Chmod(mine+"/dots", 0o711))
	var hide []string
	for _, p := range []string{".ssh", ".config/gh", "keys/*", "linked", ".dots/aws", "token",
		"new/deep/token", ".dots/new"} {
		hide = append(hide, filepath.Join(mine, p))
	}
	l := s.live("gen")
	l.Stack.Host = true
	k := rootfs.Mask{Below: l.Stack, Hide: hide}
	var err error
	k.Mounts, err = rootfs.HostMounts()
	must(s.t, err)
	made, err := k.Make(filepath.Join(s.home, "masks"))
	must(s.t, err)
	if again, err := k.Make(filepath.Join(s.home, "masks")); err != nil || again.Dir != made.Dir ||
		again.Places != made.Places || made.Places < 9 {
		s.t.Errorf("made %+v, then %+v, %v", made, again, err)
	}
	l.Stack.Layers, l.Stack.Mask = []string{made.Dir}, made.Dir
	// Paths that were missing are created, and a directory gets more entries.
	plant("new/deep/token", secret)
	plant("dots/new", secret)
	plant("keys/later", secret)
	const first = ".config/other open\n.dots nothing\ndots/other open\n"
	got := s.step(s.present(l), "masked", mine)
	rest := strings.TrimPrefix(got, first)
	if strings.Contains(got, "SECRET") || strings.Contains(got, "there") || !strings.HasPrefix(got, first) {
		s.t.Errorf("shown:\n%s", got)
	}
	if !strings.Contains(rest, "/mine own\n") || !strings.Contains(rest, "/other open\n") {
		s.t.Errorf("afterwards:\n%s", rest)
	}
	if text, err := os.ReadFile(mine + "/.ssh/id"); err != nil || string(text) != secret {
		s.t.Errorf("the host has %q, %v", text, err)
	}
	// Presented again, the root is the same; a new generation has the original state.
	spec := s.present(l)
	for _, o := range spec.Overlays {
		if o.Target == mine {
			s.t.Errorf("a separate part: %+v", o)
		}
	}
	m := l
	m.Dir = filepath.Join(s.home, "gen2")
	if got := s.step(s.present(m), "masked", mine); strings.Contains(got, "SECRET") || !strings.HasPrefix(got, first) {
		s.t.Errorf("a new generation shows:\n%s", got)
	}
	must(s.t, s.drv.Remove(s.t.Context(), l.Dir))
}

//go:build linux

package engine

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// needsMarks skips the test where whiteouts cannot be made.
func needsMarks(t *testing.T, h *home) {
	t.Helper()
	if _, err := h.masks.Make(t.Context(),
		&meta.Sandbox{Name: "trial", Config: meta.Config{Host: true, Tier: tierProcess, Net: "off"}}); err != nil {
		if strings.Contains(err.Error(), "operation not permitted") {
			t.Skip("needs overlayfs-marks: " + err.Error())
		}
		t.Fatal(err)
	}
}

// reads returns the content of a file in a snapshot of a sandbox; "" if there is none.
func (h *home) reads(name, ref, p string) string {
	h.t.Helper()
	past, err := h.OpenPast(h.t.Context(), name, ref)
	if err != nil {
		h.t.Fatal(err)
	}
	_, f, err := past.Open(p)
	if fault.Is(err, fault.NotFound) {
		return ""
	}
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(text)
}

// TestMask_HidesHostCopyLikeHost covers layers that were merged from those of the copy and those of the sandbox,
// forks, and earlier snapshots.
func TestMask_HidesHostCopyLikeHost(t *testing.T) {
	t.Parallel()
	f := newFakeHost(t)
	needsMarks(t, f.home)
	f.write("etc/shadow", "secret")
	f.write("home/me/.ssh/id", "secret")
	f.write("home/me/.config/gh/hosts.yml", "secret")
	f.write("home/me/.config/other", "open")
	make := func(name string, files ...wire.PolicyFile) {
		t.Helper()
		if _, err := f.Create(t.Context(),
			wire.CreateRequest{Name: name, From: wire.Source{Kind: wire.SourceHostCopy}, Policy: files},
			func(wire.Progress) {}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(name string, ref string) {
		t.Helper()
		for _, p := range []string{"/etc/shadow", "/home/me/.ssh/id", "/home/me/.config/gh/hosts.yml"} {
			if got := f.reads(name, ref, p); got == "secret" {
				t.Errorf("%s@%s shows %s", name, ref, p)
			}
		}
		if f.reads(name, ref, "/home/me/.config/other") != "open" || f.reads(name, ref, "/etc/conf") == "" {
			t.Errorf("%s@%s lacks a file that is not hidden", name, ref)
		}
	}
	make("a")
	check("a", "HEAD")
	for p, text := range f.tree("a") {
		if text == "secret" {
			t.Errorf("a shows %s", p)
		}
	}
	if c := f.last(); c.Hidden == 0 {
		t.Errorf("started with %d hidden paths", c.Hidden)
	}
	// Refreshes add layers below the base, and commands add some above it.
	for i := range 5 {
		f.write("etc/conf", itoa(i))
		f.write("home/me/.ssh/id", "secret")
	}
	for i := range 6 {
		f.write("usr/lib/new"+itoa(i), itoa(i))
		make("b" + itoa(i))
	}
	for i := range 20 {
		f.run("b5", "write", "f", itoa(i))
		f.run("b5", "write", "etc/shadow", "my own")
	}
	if err := f.Merge(t.Context()); err != nil {
		t.Fatal(err)
	}
	rec, err := f.DB.Sandbox(t.Context(), "b5")
	if err != nil {
		t.Fatal(err)
	}
	all, err := f.stacks.Below(t.Context(), rec.Head)
	if err != nil {
		t.Fatal(err)
	}
	st, ids, err := f.masks.Stack(t.Context(), &rec, rec.Head)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(ids, all) {
		t.Error("no layer was merged from the copy and the sandbox, so nothing is tested")
	}
	below, err := f.stacks.Below(t.Context(), timeline.SnapshotID(rec.Base))
	if err != nil || !slices.Equal(st.Layers[len(st.Layers)-len(below):], f.stacks.Dirs(below)) ||
		st.Layers[len(st.Layers)-len(below)-1] != st.Mask || st.Mask == "" {
		t.Errorf("%+v does not have the mask directly above its base, %v", st, err)
	}
	check("b5", "HEAD")
	check("b5", "HEAD~30")
	if got := f.reads("b5", "HEAD", "/etc/shadow"); got != "my own" {
		t.Errorf("the sandbox's own file is %q", got)
	}
	if _, err := f.Fork(t.Context(), "b5", wire.ForkRequest{Names: []string{"c"}}); err != nil {
		t.Fatal(err)
	}
	check("c", "HEAD")
	if got := f.tree("c")["etc/shadow"]; got != "my own" {
		t.Errorf("the fork has %q", got)
	}
	f.reopen()
	check("b5", "HEAD~30")
	check("a", "HEAD")
	// A sandbox from before masks existed hides them too, and so does its fork.
	if err := f.DB.UpdateSandbox(t.Context(), rec.ID,
		func(r *meta.Sandbox) error { r.Root = ""; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(f.sandboxDir(rec.ID), "mask")); err != nil {
		t.Fatal(err)
	}
	f.reopen()
	check("b5", "HEAD~30")
	if _, err := f.Fork(t.Context(), "b5", wire.ForkRequest{Names: []string{"d"}}); err != nil {
		t.Fatal(err)
	}
	check("d", "HEAD")
	// A policy that shows a path shows no other hidden path.
	make("shown", said(wire.PolicyUser, "files: {show: [~/.ssh], hide: [/etc/conf]}"))
	if f.reads("shown", "HEAD", "/home/me/.ssh/id") != "secret" || f.reads("shown", "HEAD", "/etc/shadow") != "" ||
		f.reads("shown", "HEAD", "/etc/conf") != "" {
		t.Error("the shown paths are not those of the policy")
	}
}

// TestMask_HidesNamedPathsOfOtherBase checks that a named path is hidden both at its own path and where it is in the
// imported directory: ./secret is /secret there. Built-in hidden paths such as /etc/shadow are shown, since they
// belong to the base.
func TestMask_HidesNamedPathsOfOtherBase(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	needsMarks(t, h)
	dir := h.t.TempDir()
	for _, p := range []string{"etc/shadow", "secret", "inside", "keys/a"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, p), []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := h.makes("box", func(r *wire.CreateRequest) {
		r.From.Path = dir
		r.Policy = []wire.PolicyFile{
			{Level: wire.PolicyProject, Name: dir + "/coppice.yaml",
				Text: "version: 1\nfiles: {hide: [./secret, ./keys/*, /inside]}"}}
	})
	if err != nil {
		t.Fatal(err)
	}
	tree := h.tree("box")
	if _, there := tree["keys/"]; !there || len(tree) != 3 || tree["etc/shadow"] != "secret" {
		t.Errorf("the sandbox shows %v", tree)
	}
	h.run("box", "write", "secret", "my own")
	if got := h.reads("box", "HEAD", "/secret"); got != "my own" {
		t.Errorf("the new file has %q", got)
	}
	if got := h.reads("box", "HEAD~1", "/secret"); got != "" {
		t.Errorf("the snapshot before has %q", got)
	}
	d, err := h.Diff(t.Context(), "box", wire.DiffRequest{A: "HEAD~1", B: "HEAD"})
	if err != nil || len(d.Changes) != 1 {
		t.Errorf("%+v, %v", d.Changes, err)
	}
}

// TestMask_IsRequiredForHost checks that a stack with the host at its bottom has a mask, and that there is an error
// instead of a stack if the mask cannot be made.
func TestMask_IsRequiredForHost(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	needsMarks(t, h)
	p, err := policy.Merge()
	if err != nil {
		t.Fatal(err)
	}
	rec := meta.Sandbox{ID: "0123456789ab", Name: "box", Config: meta.Config{Host: true, Tier: tierProcess}}
	if err := policies.Pin(&rec, p); err != nil {
		t.Fatal(err)
	}
	st, _, err := h.masks.Stack(t.Context(), &rec, "")
	if err != nil || !st.Host || st.Mask == "" || !slices.Equal(st.Layers, []string{st.Mask}) {
		t.Fatalf("%+v, %v", st, err)
	}
	if err := os.MkdirAll(h.sandboxDir(rec.ID), 0o700); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(h.Home, "masks")
	made, err := h.masks.ForMount(t.Context(), sandbox.New(rec.ID).TryLock("mounting it"), &rec)
	if err != nil || made.Dir != st.Mask || made.Places == 0 {
		t.Errorf("%+v, %v", made, err)
	}
	// A sweep keeps the mask, and removes a mask that no sandbox can have mounted.
	if err := os.MkdirAll(dir+"/unused/d", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := h.masks.Sweep(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != filepath.Base(st.Mask) {
		t.Errorf("%v, %v", left, err)
	}
	// If the mask cannot be made, there is no stack.
	h.masks.Forget(rec.ID)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if st, _, err := h.masks.Stack(t.Context(), &rec, ""); err == nil {
		t.Errorf("%+v", st)
	}
	rec.PolicyText, rec.Policy = "", "sha256:none"
	if st, _, err := h.masks.Stack(t.Context(), &rec, ""); err == nil {
		t.Errorf("without its policy: %+v", st)
	}
}

// TestMask_IsWholeAfterFailedSweep checks that a mask that could be removed only in part is not used again.
func TestMask_IsWholeAfterFailedSweep(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs real-root: to mount")
	}
	f := newFakeHost(t)
	needsMarks(t, f.home)
	f.write("etc/shadow", "secret")
	f.write("home/me/.ssh/id", "secret")
	f.write("home/me/.config/gh/hosts.yml", "secret")
	f.box("a")
	rec, err := f.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	list := func() (dir string, all []string) {
		t.Helper()
		made, err := f.masks.Make(ctx, &rec)
		if err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(made.Dir, func(p string, _ fs.DirEntry, err error) error {
			all = append(all, strings.TrimPrefix(p, made.Dir))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return made.Dir, all
	}
	dir, want := list()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	names, err := d.Readdirnames(-1)
	if err = errors.Join(err, d.Close()); err != nil || len(names) < 2 {
		t.Fatal(names, err)
	}
	f.close()
	last := names[len(names)-1] // removed last
	if err := unix.Mount(filepath.Join(dir, last), filepath.Join(dir, last), "", unix.MS_BIND, ""); err != nil {
		t.Skipf("needs real-root: to mount: %v", err)
	}
	t.Cleanup(func() {
		held, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "*", last))
		aside, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), ".*", last))
		for _, at := range append(held, aside...) {
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
	})
	f.open()
	f.pretend()
	if _, got := list(); !slices.Equal(got, want) {
		t.Errorf("the mask has %q, want %q", got, want)
	}
}

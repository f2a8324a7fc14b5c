package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

func TestVerify_FindsDamage(t *testing.T) {
	damage := map[string]func(fs string) error{
		"bit":       func(d string) error { return flip(filepath.Join(d, "dir/file")) },
		"truncated": func(d string) error { return os.Truncate(filepath.Join(d, "dir/file"), 1) },
		"missing":   func(d string) error { return os.Remove(filepath.Join(d, "fifo")) },
		"extra":     func(d string) error { return os.WriteFile(filepath.Join(d, "dir/extra"), nil, 0o600) },
		"mode":      func(d string) error { return os.Chmod(filepath.Join(d, "gone"), 0o600) },
		"directory": func(d string) error { return os.Chmod(filepath.Join(d, "dir"), 0o700) },
		"attribute": func(d string) error { return unix.Setxattr(filepath.Join(d, "gone"), "user.new", nil, 0) },
		"mtime": func(d string) error {
			ts := []unix.Timespec{{Sec: 1}, {Sec: 1}}
			return unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(d, "dir/sub"), ts, 0)
		},
		"link": func(d string) error {
			return cmpOr(os.Remove(filepath.Join(d, "link")), os.Symlink("elsewhere", filepath.Join(d, "link")))
		},
		"opaque":   func(d string) error { return unix.Setxattr(filepath.Join(d, "dir"), xattrOpaque, []byte("y"), 0) },
		"manifest": func(d string) error { return flip(filepath.Join(d, "../manifest")) },
		"cut":      func(d string) error { return os.Truncate(filepath.Join(d, "../manifest"), 40) },
	}
	for name, do := range damage {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, t.TempDir(), true)
			defer w.close()
			w.base(func(src string) { smallTree(t, src) })
			id := w.stack[0]
			if err := w.s.Verify(context.Background(), id); !fault.Is(err, fault.NotFound) {
				t.Errorf("not finalized: %v", err)
			}
			finalized, err := w.s.Finalize(context.Background(), id)
			w.must(err)
			w.must(w.s.VerifyDigest(context.Background(), id, finalized.Digest))
			w.must(do(w.s.Dir(id)))
			if err := w.s.VerifyDigest(context.Background(), id, finalized.Digest); !fault.Is(err, fault.Corrupt) {
				t.Errorf("Verify: %v", err)
			}
		})
	}
}

func cmpOr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// flip changes a byte and keeps the time.
func flip(p string) error {
	var st unix.Stat_t
	if err := unix.Stat(p, &st); err != nil {
		return err
	}
	b, err := os.ReadFile(p)
	if err != nil {
		return err
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(p, b, 0o600); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{st.Mtim, st.Mtim}, 0)
}

// TestTarWithGNUTar unpacks a layer with another program and compares.
func TestTarWithGNUTar(t *testing.T) {
	gnu, err := exec.LookPath("tar")
	if err != nil {
		t.Skip("GNU tar is not installed")
	}
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	w.base(func(src string) { smallTree(t, src) })
	_, err = w.s.Finalize(context.Background(), w.stack[0])
	w.must(err)
	f, err := os.Create(filepath.Join(w.home, "layer.tar"))
	w.must(err)
	w.must(w.s.WriteTar(context.Background(), w.stack[0], f))
	w.must(f.Close())
	out := filepath.Join(w.home, "out")
	w.must(os.Mkdir(out, 0o700))
	cmd := exec.Command(gnu, "--xattrs", "--xattrs-include=*", "-xpf", f.Name(), "-C", out)
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, msg)
	}
	w.same("tar", viewPicture(t, w.s.View(w.dirs(w.stack))), picture(t, out))
}

func TestReadIndex_RefusesDamage(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	w.base(func(src string) { smallTree(t, src) })
	w.present()
	var b bytes.Buffer
	_, err := w.index.WriteTo(&b)
	w.must(err)
	good := b.Bytes()
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		if _, err := ReadIndex(bytes.NewReader(bad)); err == nil {
			t.Fatalf("byte %d changed, and ReadIndex returned no error", i)
		}
		if _, err := ReadIndex(bytes.NewReader(good[:i])); err == nil {
			t.Fatalf("cut at %d, and ReadIndex returned no error", i)
		}
	}
	later := bytes.Replace(bytes.Clone(good), []byte("index-01"), []byte("index-02"), 1)
	if _, err := ReadIndex(bytes.NewReader(later)); !fault.Is(err, fault.Version) {
		t.Errorf("unknown version: %v", err)
	}
}

func FuzzReadIndex(f *testing.F) {
	f.Add([]byte(indexMagic))
	f.Fuzz(func(t *testing.T, payload []byte) {
		p := indexParser{b: payload}
		x := p.index()
		if p.err == nil && len(p.b) == 0 {
			var b bytes.Buffer
			if _, err := x.WriteTo(&b); err != nil {
				t.Error(err)
			}
			if _, err := ReadIndex(&b); err != nil {
				t.Errorf("own index refused: %v", err)
			}
		}
	})
}

func TestChangesAndPatch(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	w.base(func(src string) {
		w.must(os.MkdirAll(filepath.Join(src, "gone/deep"), 0o755))
		w.must(os.WriteFile(filepath.Join(src, "gone/deep/f"), []byte("bye\n"), 0o644))
		w.must(os.WriteFile(filepath.Join(src, "text"), []byte("one\ntwo\nthree\n"), 0o644))
		w.must(os.WriteFile(filepath.Join(src, "bin"), []byte("a\x00b"), 0o644))
		w.must(os.WriteFile(filepath.Join(src, "same"), []byte("same"), 0o644))
		w.must(os.WriteFile(filepath.Join(src, "kind"), []byte("file\n"), 0o644))
		w.must(os.Mkdir(filepath.Join(src, "again"), 0o755))
		w.must(os.WriteFile(filepath.Join(src, "again/old"), nil, 0o644))
	})
	w.present()
	a := w.s.View(w.dirs(w.stack))
	in := func(p string) string { return filepath.Join(w.live, p) }
	w.must(os.RemoveAll(in("gone")))
	w.must(os.WriteFile(in("text"), []byte("one\n2\nthree"), 0o755))
	w.must(os.Chmod(in("text"), 0o755))
	w.must(os.WriteFile(in("bin"), []byte("a\x00c"), 0o644))
	w.must(os.Remove(in("kind")))
	w.must(os.Mkdir(in("kind"), 0o755))
	w.must(os.WriteFile(in("kind/x"), nil, 0o644))
	w.must(os.RemoveAll(in("again")))
	w.must(os.Mkdir(in("again"), 0o755))
	w.must(os.WriteFile(in("again/new\n"), []byte("n\n"), 0o644))
	w.must(os.Symlink("target", in("link")))
	w.capture()
	touched := []rootspec.Part{{Dir: w.s.Dir(w.stack[0]), Path: "/"}}
	list := func(a, b *View, touched []rootspec.Part, paths ...string) string {
		t.Helper()
		got, err := Changes(context.Background(), a, b, touched, DiffOptions{Paths: paths, Stat: true})
		w.must(err)
		var out []string
		for _, c := range got {
			s := c.Kind + c.Path
			if c.Lines != nil {
				s += fmt.Sprintf("(+%d-%d)", c.Lines.Added, c.Lines.Removed)
			}
			out = append(out, s)
		}
		return strings.Join(out, " ")
	}
	b := w.s.View(w.dirs(w.stack))
	const want = "+/again/new\n(+1-0) -/again/old(+0-0) M/bin -/gone -/gone/deep -/gone/deep/f(+0-1) M/kind(+0-1) " +
		"+/kind/x(+0-0) +/link M/text(+2-2)"
	if got := list(a, b, touched); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := list(a, w.s.PlainView(w.parts), w.parts); got != want {
		t.Errorf("live: got %q", got)
	}
	if got, want := list(a, b, touched, "gone/deep", "/link"), "-/gone/deep -/gone/deep/f(+0-1) +/link"; got != want {
		t.Errorf("paths: got %q, want %q", got, want)
	}
	if got := list(b, b, touched); got != "" {
		t.Errorf("against itself: %q", got)
	}
	var patch bytes.Buffer
	w.must(Patch(context.Background(), &patch, a, b, touched, DiffOptions{}))
	for _, want := range []string{
		"--- a/text\n+++ b/text\n@@ -1,3 +1,3 @@\n one\n-two\n-three\n+2\n+three\n\\ No newline at end of file\n",
		"Binary files a/bin and b/bin differ\n", "old mode 100644\nnew mode 100755\n", "deleted file mode 100644\n",
		`"b/again/new\n"`, "+target\n",
	} {
		if !strings.Contains(patch.String(), want) {
			t.Errorf("patch lacks %q:\n%s", want, patch.String())
		}
	}
	if git, err := exec.LookPath("git"); err == nil {
		dst := filepath.Join(w.home, "applied")
		w.must(os.Mkdir(dst, 0o755))
		w.must(w.s.Materialise(context.Background(), a, dst))
		patch.Reset()
		w.must(Patch(context.Background(), &patch, a, b, touched, DiffOptions{Paths: []string{"text", "again", "link", "gone"}}))
		cmd := exec.Command(git, "apply", "--unsafe-paths", "-")
		cmd.Dir, cmd.Stdin = dst, &patch
		if msg, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("git apply: %v\n%s", err, msg)
		}
	}
}

// TestParts captures a root that is made of several overlays, as with the base host.
func TestParts(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, t.TempDir(), false)
	defer w.close()
	usr, lib := filepath.Join(w.home, "usr"), filepath.Join(w.home, "lib")
	w.must(os.MkdirAll(filepath.Join(usr, "lib"), 0o755))
	w.must(os.MkdirAll(lib, 0o750))
	parts := []rootspec.Part{{Dir: lib, Path: "/usr/lib"}, {Dir: usr, Path: "/usr"}}
	x, err := w.s.Scan(ctx, parts, false)
	w.must(err)
	w.must(os.WriteFile(filepath.Join(lib, "f"), []byte("x"), 0o644))
	c, err := w.s.Capture(ctx, "0000000000000001", CaptureInput{Parts: parts, Index: x})
	w.must(err)
	if c.Stats.Paths != 1 || fmt.Sprint(c.Paths) != "[/usr/lib/f]" {
		t.Errorf("captured %d paths: %v", c.Stats.Paths, c.Paths)
	}
	host := rootspec.Stack{Host: true, Layers: []string{w.s.Dir("0000000000000001")}}
	v := w.s.View(host, "/usr", "/usr/lib")
	var want unix.Stat_t
	w.must(unix.Stat("/usr", &want))
	if e, err := v.Lookup("/usr"); err != nil || e.Mtime != mtimeNs(&want) {
		t.Errorf("/usr is not the host's: %+v %v", e, err)
	}
	if e, err := v.Lookup("/usr/lib"); err != nil || e.Mode != unix.S_IFDIR|0o750 {
		t.Errorf("/usr/lib is not the part's: %+v %v", e, err)
	}
	if _, err := v.Lookup("/usr/lib/f"); err != nil {
		t.Error(err)
	}
	if _, err := v.Lookup("/usr/bin"); err != nil {
		t.Error(err)
	}
	// It is not found if the home is on another file system than "/".
	if list, err := v.ReadDir(t.Context(), w.home); err != nil && !fault.Is(err, fault.NotFound) || len(list) > 0 {
		t.Errorf("the store shows: %v %v", list, err)
	}
	w.must(w.s.Adopt(ctx, "0000000000000002", parts))
	if _, err := os.Stat(filepath.Join(w.s.Dir("0000000000000002"), "usr/lib/f")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(lib); err == nil {
		t.Error("the part's directory still exists")
	}
	w.must(w.s.Unadopt(ctx, "0000000000000002", parts))
	if _, err := os.Stat(filepath.Join(lib, "f")); err != nil || w.s.Has("0000000000000002") {
		t.Errorf("not moved back: %v", err)
	}
	w.must(w.s.Merge(ctx, "0000000000000003", []timeline.LayerID{"0000000000000001", "0000000000000001"}))
	if !isSkeletonDir(t, w.s.Dir("0000000000000003")+"/usr") {
		t.Error("merging lost the skeleton's mark")
	}
}

func isSkeletonDir(t *testing.T, p string) bool {
	t.Helper()
	fd, err := dirfd.OpenDir(unix.AT_FDCWD, p)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	return new(source).isSkeleton(fd)
}

// TestFinalize_StopsOnCancel cancels at each point, also in the middle of a file.
func TestFinalize_StopsOnCancel(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	w.base(func(src string) {
		w.must(os.WriteFile(filepath.Join(src, "f"), make([]byte, 3*copyBufSize), 0o600))
	})
	id := w.stack[0]
	for n := int64(0); ; n++ {
		_, err := w.s.Finalize(looptest.EndsAfter(t, n), id)
		if err == nil {
			if n < 6 { // of the file alone: three pieces, for the digest and the DiffID
				t.Errorf("it checks its context %d times", n)
			}
			return
		}
		if !errors.Is(err, context.Canceled) || w.s.Finalized(id) {
			t.Fatalf("ended after %d looks: %v; finalized: %v", n, err, w.s.Finalized(id))
		}
	}
}

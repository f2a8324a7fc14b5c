//go:build linux

package program

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// built returns the embedded files of a build whose programs are shell scripts that print text.
func built(t *testing.T, text string) (fstest.MapFS, []byte) {
	t.Helper()
	program := []byte("#!/bin/sh\necho " + text + "\n")
	files, sums := fstest.MapFS{}, ""
	for _, name := range Names {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		if _, err := z.Write(program); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		files["embedded/"+string(name)+".gz"] = &fstest.MapFile{Data: packed.Bytes()}
		sums += fmt.Sprintf("%x  %s\n", sha256.Sum256(program), name)
	}
	files["embedded/SHA256SUMS"] = &fstest.MapFile{Data: []byte(sums)}
	return files, program
}

// set returns a Set with embedded files.
func set(t *testing.T, files fstest.MapFS, dir string) *Set {
	t.Helper()
	s := New(dir, "")
	s.embedded = files
	t.Cleanup(func() { s.Close() })
	return s
}

// says executes a program of a Set, and returns its output.
func says(t *testing.T, s *Set, name Name) string {
	t.Helper()
	f, err := s.File(name)
	if err != nil {
		t.Fatal(err)
	}
	if f.Fd() < aboveGiven {
		t.Errorf("descriptor %d is in the range of a child's files", f.Fd())
	}
	cmd := exec.Command(Path(f))
	cmd.ExtraFiles = []*os.File{f} // the interpreter opens it again by its number
	cmd.Path = "/proc/self/fd/3"
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func TestFile_UnpacksOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "home", "programs")
	files, _ := built(t, "one")
	for range 2 {
		if got := says(t, set(t, files, dir), Init); got != "one" {
			t.Errorf("it prints %q", got)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	if st, err := os.Stat(filepath.Join(dir, entries[0].Name())); err != nil || st.Mode() != 0o555 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

// TestGuard_KeepsTheProgramInPlace checks that a program runs whatever numbers the files of its child have, also if the
// highest is just below that of the program.
func TestGuard_KeepsTheProgramInPlace(t *testing.T) {
	own, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	exe, err := Executable(own)
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	var taken []*os.File
	defer func() {
		for _, f := range taken {
			f.Close()
		}
	}()
	for len(taken) == 0 || taken[len(taken)-1].Fd() < exe.Fd()+8 {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, f)
	}
	// Two low numbers are free for the pipe by which package syscall learns of a failure.
	taken[0].Close()
	taken[1].Close()
	taken = taken[2:]
	start := func(f *os.File, given int) error {
		files := slices.Repeat([]uintptr{f.Fd()}, given)
		attr := &syscall.ProcAttr{Files: files, Env: os.Environ()} // with GORACE, to exit without a delay
		pid, err := syscall.ForkExec(Path(exe), []string{"program.test", "-test.run=^$"}, attr)
		if err != nil {
			return err
		}
		var ended unix.WaitStatus
		if _, err := unix.Wait4(pid, &ended, 0, nil); err != nil {
			return err
		}
		if ended != 0 {
			return fmt.Errorf("the program exited with %#x", ended)
		}
		return nil
	}
	lost := 0
	for _, f := range taken {
		if f.Fd() >= exe.Fd() {
			continue
		}
		for given := 3; given <= 8; given++ {
			if start(f, given) != nil {
				lost++
			}
			guard, err := Guard(exe, f)
			if err != nil {
				t.Fatal(err)
			}
			if err := start(guard, given); err != nil {
				t.Errorf("%d files with number %d, program with number %d: %v", given, f.Fd(), exe.Fd(), err)
			}
			guard.Close()
		}
	}
	if lost == 0 {
		t.Error("no start without a guard lost the program: Guard is no longer needed")
	}
}

// TestFile_IsNotBusy checks that a program that was just unpacked can be executed, whatever else the process starts
// meanwhile.
func TestFile_IsNotBusy(t *testing.T) {
	t.Parallel()
	files, _ := built(t, "unpacked")
	done := make(chan struct{})
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := exec.Command("true").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 100 {
		if got := says(t, set(t, files, filepath.Join(t.TempDir(), "programs")), Init); got != "unpacked" {
			t.Errorf("it prints %q", got)
		}
	}
	close(done)
	others.Wait()
}

// TestFile_ReplacesUnfinishedFiles covers a daemon that was killed while it unpacked a program.
func TestFile_ReplacesUnfinishedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files, program := built(t, "one")
	sum := fmt.Sprintf("%x", sha256.Sum256(program))
	for _, left := range []string{string(Init) + "-" + sum[:16] + ".new", string(Init) + "-0123456789abcdef.new"} {
		if err := os.WriteFile(filepath.Join(dir, left), program[:3], 0o400); err != nil {
			t.Fatal(err)
		}
	}
	if got := says(t, set(t, files, dir), Init); got != "one" {
		t.Errorf("it prints %q", got)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
}

func TestFile_ReplacesModifiedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files, program := built(t, "one")
	says(t, set(t, files, dir), Gate)
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	if err := os.Remove(names[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(names[0], []byte("#!/bin/sh\necho evil\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := says(t, set(t, files, dir), Gate); got != "one" {
		t.Errorf("it prints %q", got)
	}
	if got, err := os.ReadFile(names[0]); err != nil || !bytes.Equal(got, program) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestFile_RemovesOtherBuilds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old, _ := built(t, "old")
	before := set(t, old, dir)
	says(t, before, Init)
	says(t, before, Sentry)
	files, _ := built(t, "new")
	if got := says(t, set(t, files, dir), Init); got != "new" {
		t.Errorf("it prints %q", got)
	}
	if got := says(t, before, Init); got != "old" {
		t.Errorf("the open file prints %q", got)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) != 2 ||
		!slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, string(Sentry)) }) {
		t.Errorf("%v, %v", names, err)
	}
}

// TestFile_KeepsProgramsOfOtherHomes checks that a home removes only its own programs, even if its path contains the
// characters of a pattern.
func TestFile_KeepsProgramsOfOtherHomes(t *testing.T) {
	t.Parallel()
	homes := t.TempDir()
	files, _ := built(t, "one")
	for _, home := range []string{"gone", "g[a-z]*", "g*"} {
		dir := filepath.Join(homes, home)
		if got := says(t, set(t, files, dir), Init); got != "one" {
			t.Errorf("it prints %q", got)
		}
		if err := os.WriteFile(filepath.Join(dir, string(Init)+"-of-before"), nil, 0o500); err != nil {
			t.Fatal(err)
		}
	}
	other, _ := built(t, "other")
	says(t, set(t, other, filepath.Join(homes, "g*")), Init)
	for home, want := range map[string]int{"gone": 2, "g[a-z]*": 2, "g*": 1} {
		if names, err := os.ReadDir(filepath.Join(homes, home)); err != nil || len(names) != want {
			t.Errorf("%s has %v, %v", home, names, err)
		}
	}
}

func TestFile_RefusesDamagedEmbeddedProgram(t *testing.T) {
	t.Parallel()
	files, _ := built(t, "one")
	other, _ := built(t, "other")
	files["embedded/coppice-init.gz"] = other["embedded/coppice-init.gz"]
	if _, err := set(t, files, t.TempDir()).File(Init); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a program with another digest: %v", err)
	}
	files["embedded/coppice-init.gz"] = &fstest.MapFile{Data: []byte("rubbish")}
	if _, err := set(t, files, t.TempDir()).File(Init); err == nil {
		t.Error("a program that cannot be unpacked is returned")
	}
	delete(files, "embedded/coppice-gate.gz")
	if _, err := set(t, files, t.TempDir()).File(Gate); err == nil {
		t.Error("a missing program is returned")
	}
}

// TestFile_UsesMemoryOnNoexec covers a home on a file system that is mounted noexec: programs are in memory then, and
// cannot be changed.
func TestFile_UsesMemoryOnNoexec(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", unix.MS_NOEXEC, "mode=755"); err != nil {
		t.Skip("needs real-root: it mounts")
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	files, program := built(t, "one")
	s := set(t, files, dir)
	if got := says(t, s, Init); got != "one" {
		t.Errorf("it prints %q", got)
	}
	f, err := s.File(Init)
	if err != nil {
		t.Fatal(err)
	}
	if w, err := os.OpenFile(Path(f), os.O_WRONLY, 0); err == nil {
		if _, err = w.Write(program); err == nil {
			t.Error("the program can be written to")
		}
		w.Close()
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("%v, %v", names, err)
	}
}

// TestFile_UnpacksConcurrently unpacks from several Sets, as several processes do.
func TestFile_UnpacksConcurrently(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files, _ := built(t, "one")
	var all sync.WaitGroup
	for range 20 {
		s := set(t, files, dir)
		all.Go(func() {
			for _, name := range Names {
				if _, err := s.File(name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if names, err := os.ReadDir(dir); err != nil || len(names) != len(Names) {
		t.Errorf("%v, %v", names, err)
	}
}

func TestFile_FindsProgramsBeside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := New(t.TempDir(), dir)
	defer s.Close()
	if _, err := s.File(Init); !fault.Is(err, fault.Unsupported) || !strings.Contains(fault.HintOf(err), "go install") {
		t.Errorf("a missing program: %v (%s)", err, fault.HintOf(err))
	}
	if err := os.WriteFile(filepath.Join(dir, string(Init)), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := s.File(Init); !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
		t.Errorf("another program: %v", err)
	}
	self, err := os.ReadFile("/proc/self/exe") // a program of the same module
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, string(Init)), self, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := s.File(Init); !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
		t.Errorf("another program of the module: %v", err)
	}
	build := exec.Command("go", "build", "-o", dir, "github.com/coppice-dev/coppice/cmd/"+string(Init))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, path := range []string{dir, filepath.Join(dir, string(Init))} {
		if err := os.Chmod(path, 0o1777); err != nil {
			t.Fatal(err)
		}
		if _, err := s.File(Init); !fault.Is(err, fault.Denied) || !strings.Contains(fault.HintOf(err), "chmod o-w") {
			t.Errorf("in a world-writable directory: %v", err)
		}
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f, err := s.File(Init)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.File(Init); err != nil || again != f {
		t.Errorf("the second time: %v, %v", again, err)
	}
}

// TestClient_IsTheRunningProgram checks that the program has a name as long as its file is in place.
func TestClient_IsTheRunningProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := client(t, set(t, nil, dir))
	if !sameFile(t, f, own) {
		t.Errorf("%s is not %s", f.Name(), own)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("%v, %v", names, err)
	}
}

// TestClient_IsCopiedWithoutItsFile checks that the program still has a name, and can be executed by all users, after
// its file was replaced, removed or made private. It does so in processes that run from a copy of the test.
func TestClient_IsCopiedWithoutItsFile(t *testing.T) {
	t.Parallel()
	const dirOf = "TEST_CLIENT_DIR"
	if dir := os.Getenv(dirOf); dir != "" {
		clientIsCopied(t, dir)
		return
	}
	for name, change := range map[string]func(own string) error{
		"removed":  os.Remove,
		"private":  func(own string) error { return os.Chmod(own, 0o700) },
		"replaced": func(own string) error { return errors.Join(os.Remove(own), os.WriteFile(own, []byte("new"), 0o755)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own, home := filepath.Join(t.TempDir(), "coppice"), t.TempDir()
			text, err := os.ReadFile(ownProgram)
			if err != nil {
				t.Fatal(err)
			}
			if err := writeTo(own, func(w io.Writer) error {
				_, err := w.Write(text)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			cmd := exec.Command(own, "-test.run=^TestClient_IsCopiedWithoutItsFile$")
			cmd.Env = append(os.Environ(), dirOf+"="+home)
			cmd.Stdin = r
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if err := change(own); err != nil {
				t.Fatal(err)
			}
			w.Close()
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, out.String())
			}
		})
	}
}

// clientIsCopied waits until the test has changed the file of this process, and checks the program.
func clientIsCopied(t *testing.T, dir string) {
	t.Helper()
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second daemon finds the copy
		f := client(t, set(t, nil, dir))
		names, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(names) != 1 || !strings.HasPrefix(filepath.Base(names[0]), "coppice-client-") ||
			!sameFile(t, f, names[0]) {
			t.Fatalf("%q, %v", names, err)
		}
		if st, err := f.Stat(); err != nil || st.Mode() != 0o555 {
			t.Errorf("%v, %v", st.Mode(), err)
		}
		own, err := os.Open(ownProgram)
		if err != nil {
			t.Fatal(err)
		}
		want, err1 := digestOf(own)
		got, err2 := digestOf(f)
		if got != want || err1 != nil || err2 != nil {
			t.Errorf("%s %v, %s %v", got, err2, want, err1)
		}
		own.Close()
	}
}

func client(t *testing.T, s *Set) *os.File {
	t.Helper()
	f, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Client(); again != f || err != nil {
		t.Errorf("another file: %v, %v", again, err)
	}
	return f
}

func sameFile(t *testing.T, f *os.File, name string) bool {
	t.Helper()
	is, err1 := f.Stat()
	named, err2 := os.Stat(name)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return os.SameFile(is, named)
}

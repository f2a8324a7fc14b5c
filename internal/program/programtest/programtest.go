//go:build linux

// Package programtest provides tests with the helper programs that run sandboxes.
package programtest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/program"
)

// Variables of the environment, which processes that a test starts inherit.
const (
	execPath   = "COPPICE_EXEC_PATH"     // the directory of the programs
	unpackPath = "COPPICE_TEST_UNPACKED" // a directory for copies of the running program
)

// Run runs tests, a *testing.M. Unless the environment variable names a directory with the programs, Run builds them
// first in a directory that every user can read, and removes them afterwards.
func Run(m interface{ Run() int }) (code int) {
	dir, err := os.MkdirTemp("", "coppice-programs-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.Setenv(unpackPath, filepath.Join(dir, "unpacked"))
	}
	if err == nil && os.Getenv(execPath) == "" {
		if err = build(dir); err == nil {
			err = os.Setenv(execPath, dir)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the helper programs:", err)
		return 1
	}
	return m.Run()
}

// build builds the programs, with the race detector if the tests have it. gVisor is built without: it has no room for
// the detector's memory.
func build(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for _, name := range program.Names {
		cmd := exec.Command("go", "build", "-o", dir)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if looptest.Race && name != program.Sentry {
			cmd.Args = append(cmd.Args, "-race")
			cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		}
		cmd.Args = append(cmd.Args, "github.com/coppice-dev/coppice/cmd/"+string(name))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	return nil
}

// Programs returns the programs. They stay open until the process ends.
var Programs = sync.OnceValue(func() *program.Set { return program.New(os.Getenv(unpackPath), os.Getenv(execPath)) })

// InMemory returns the programs as for a home on a file system that is mounted noexec: each one is a sealed file in
// memory. The test owns them.
func InMemory(t *testing.T) *program.Set {
	t.Helper()
	dir := t.TempDir()
	for _, name := range program.Names {
		f, err := program.Sealed(string(name), func(w io.Writer) error {
			file, err := os.Open(filepath.Join(os.Getenv(execPath), string(name)))
			if err != nil {
				return err
			}
			defer file.Close()
			_, err = io.Copy(w, file)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if err := os.Symlink(fmt.Sprint("/proc/self/fd/", f.Fd()), filepath.Join(dir, string(name))); err != nil {
			t.Fatal(err)
		}
	}
	s := program.New("", dir)
	t.Cleanup(func() { s.Close() })
	return s
}

// Runc returns the path of runc, the OCI runtime with which tier container is tested, or "" if it is not installed. It
// is in a directory that may not be in the PATH of an ordinary user.
func Runc() string {
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/local/sbin", "/usr/sbin") {
		at, err := filepath.EvalSymlinks(filepath.Join(dir, "runc"))
		if err == nil && filepath.IsAbs(at) {
			return at
		}
	}
	return ""
}

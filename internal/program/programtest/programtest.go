//go:build linux

// Package programtest gives tests the helper programs that sandboxes are started with.
package programtest

import (
	"fmt"
	"os"
	"os/exec"
	"sync"

	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/program"
)

// execPath names the directory of the programs. Processes that a test starts inherit it.
const execPath = "COPPICE_EXEC_PATH"

// Run runs tests, a *testing.M. If the environment does not say where the programs are, it
// builds them first, in a directory that every user can read, and removes them afterwards.
func Run(m interface{ Run() int }) (code int) {
	if os.Getenv(execPath) != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "coppice-programs-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = build(dir)
	}
	if err == nil {
		err = os.Setenv(execPath, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the helper programs:", err)
		return 1
	}
	return m.Run()
}

// build builds the programs; with the race detector if the tests have it, but for gVisor, which
// has no room for its memory.
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
var Programs = sync.OnceValue(func() *program.Set { return program.New("", os.Getenv(execPath)) })

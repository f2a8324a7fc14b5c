//go:build linux

package cli_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// buildsEnv names a directory with builds of the program, for who has nothing to make them with.
const buildsEnv = "COPPICE_TEST_BUILDS"

// canBuild reports whether there are some, or can be.
func canBuild() bool {
	_, err := exec.LookPath("go")
	return os.Getenv(buildsEnv) != "" || err == nil
}

// builds are two builds of the program, made as soon as a script wants them: in the older one
// all of the code lies elsewhere.
type builds struct {
	once sync.Once
	ours bool
	dir  string
	err  error
}

// flags are the linker's.
var flags = map[string]string{
	"older": "-randlayout=77 -X github.com/coppice-dev/coppice/internal/cli.version=older",
	"newer": "-X github.com/coppice-dev/coppice/internal/cli.version=newer",
}

func (b *builds) make() {
	if b.dir = os.Getenv(buildsEnv); b.dir != "" {
		return
	}
	if b.dir, b.err = os.MkdirTemp("", "coppice-builds-"); b.err != nil {
		return
	}
	b.ours = true
	for name, link := range flags {
		cmd := exec.Command("../../scripts/build", filepath.Join(b.dir, name), link)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.err = fmt.Errorf("%w: %s", err, out)
		}
	}
}

// remove removes what was made.
func (b *builds) remove() {
	if b.ours {
		_ = os.RemoveAll(b.dir)
	}
}

// put is the command "builds", which puts two builds of the program into the directory bin of
// the script: older and newer.
func (b *builds) put(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: builds")
	}
	b.once.Do(b.make)
	ts.Check(b.err)
	ts.Check(os.MkdirAll(ts.MkAbs("bin"), 0o755))
	for name := range flags {
		program, err := os.ReadFile(filepath.Join(b.dir, name))
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(filepath.Join("bin", name)), program, 0o755))
	}
}

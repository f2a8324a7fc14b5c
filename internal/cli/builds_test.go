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

// buildsEnv names a directory with builds of the program, for hosts without a compiler.
const buildsEnv = "COPPICE_TEST_BUILDS"

// canBuild reports whether builds of the program exist or can be made.
func canBuild() bool {
	_, err := exec.LookPath("go")
	return os.Getenv(buildsEnv) != "" || err == nil
}

// builds has two builds of the program, made when a script first needs them. In the older one all functions have
// other addresses.
type builds struct {
	once sync.Once
	ours bool
	dir  string
	err  error
}

// flags are the linker flags by build.
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

// remove removes the builds that make created.
func (b *builds) remove() {
	if b.ours {
		_ = os.RemoveAll(b.dir)
	}
}

// put is the command "builds" of scripts. It writes two builds of the program, older and newer, to the directory bin
// of the script.
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

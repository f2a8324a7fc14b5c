//go:build linux

package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/npmtest"
)

// TestExamples_Explore checks that the examples in all languages do the same, and leave no sandboxes behind.
func TestExamples_Explore(t *testing.T) {
	t.Parallel()
	const dir = "../../examples/explore"
	d := newDesk(t)
	d.run("rm", sandbox)
	path, err := exec.LookPath("coppice") // the tests' build
	if err != nil {
		t.Fatal(err)
	}
	program := func(t *testing.T, name string, args ...string) *exec.Cmd {
		t.Helper()
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s: %v", name, err)
		}
		cmd := exec.Command(name, args...)
		cmd.Env = append(d.env, "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"))
		return cmd
	}
	for name, prepare := range map[string]func(t *testing.T) *exec.Cmd{
		"python": func(t *testing.T) *exec.Cmd { return program(t, "python3", dir+"/python/explore.py") },
		"shell":  func(t *testing.T) *exec.Cmd { program(t, "curl"); return program(t, "sh", dir+"/shell/explore.sh") },
		"go": func(t *testing.T) *exec.Cmd {
			if testing.Short() && os.Getuid() != 0 {
				t.Skip("needs real-root: it takes time to compile everything for a user who has compiled nothing")
			}
			return program(t, "go", "run", dir+"/go")
		},
		"typescript": func(t *testing.T) *exec.Cmd {
			if testing.Short() && os.Getuid() != 0 {
				t.Skip("needs real-root: it takes time to install the compiler")
			}
			cmd := program(t, "npm", "start", "--silent")
			cmd.Dir = t.TempDir()
			for _, f := range []string{"explore.ts", "package.json", "tsconfig.json"} {
				b, err := os.ReadFile(filepath.Join(dir, "typescript", f))
				if err == nil {
					err = os.WriteFile(filepath.Join(cmd.Dir, f), b, 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			modules := filepath.Join(npmtest.Install(t, filepath.Join(dir, "typescript"), "typescript"), "node_modules")
			if err := os.Symlink(modules, filepath.Join(cmd.Dir, "node_modules")); err != nil {
				t.Fatal(err)
			}
			return cmd
		},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := prepare(t)
			// Only stdout: the startup files of the host's user, which the shell of a sandbox reads, may warn.
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if got := string(out); err != nil || !strings.HasSuffix(got, "arithmetic won: 42\n") {
				t.Errorf("%v: %s%s", err, got, &stderr)
			}
			if left := d.run("ls", "--quiet"); left != "" {
				t.Errorf("sandboxes are left: %s", left)
			}
		})
	}
}

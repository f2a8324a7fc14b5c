//go:build linux && (amd64 || arm64)

package box_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

// TestStart_SharesNoProgramInMemory exists because a process of a sandbox can open the program of init, and change what
// seals do not protect: its mode, times, extended attributes and locks. So each sandbox gets its own copy if the home's
// programs are in memory.
func TestStart_SharesNoProgramInMemory(t *testing.T) {
	t.Parallel()
	if !caller().Root {
		t.Skip("needs real-root: it looks at the program of init")
	}
	for tier, config := range map[string]func(testing.TB) plan.Config{plan.TierProcess: config,
		plan.TierSupervised: supervised} {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			programs := programtest.InMemory(t)
			seen := map[string]string{}
			see := func(what string, path string) {
				var st unix.Stat_t
				if err := unix.Stat(path, &st); err != nil {
					t.Fatal(err)
				}
				if st.Mode&0o222 != 0 {
					t.Errorf("the program of %s has mode %o", what, st.Mode)
				}
				file := fmt.Sprintf("%d:%d", st.Dev, st.Ino)
				if other, ok := seen[file]; ok {
					t.Errorf("%s and %s share a program", what, other)
				}
				seen[file] = what
			}
			own, err := programs.File(program.Init)
			if err != nil {
				t.Fatal(err)
			}
			see("the daemon", program.Path(own))
			for _, name := range []string{"one", "two"} {
				c := config(t)
				b, _, err := box.Start(t.Context(), programs, c)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					_ = b.Stop(t.Context(), 0)
					b.Close()
				})
				see("sandbox "+name, fmt.Sprintf("/proc/%d/exe", startedBy(t, &boxtest.Box{Box: b, Config: c}, initlink.Argv0)))
			}
		})
	}
}

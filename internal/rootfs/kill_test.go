//go:build linux

package rootfs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootfs/rootfstest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

const presentEnv = "COPPICE_TEST_PRESENT"

// presentOrder is the argument of a child that calls Present and is killed during it.
type presentOrder struct {
	Driver, Home string
	Live         rootfs.Live
}

// presentChild carries out the order in the environment. TestMain calls it.
func presentChild(text string) error {
	var o presentOrder
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	d, err := rootfs.New(o.Driver, rootfs.Deps{Home: o.Home, Root: true, Materialise: rootfstest.Materialise})
	if err != nil {
		return err
	}
	fmt.Println("go")
	_, err = d.Present(context.Background(), o.Live)
	return err
}

// TestPresent_SurvivesKill kills a process while it presents a stack, and checks that the next Present creates
// exactly that stack.
func TestPresent_SurvivesKill(t *testing.T) {
	if !rootfstest.AsUser(t) {
		return
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"overlay", "copy"} {
		t.Run(name, func(t *testing.T) {
			home := tempHome(t)
			base := filepath.Join(home, "base")
			if err := os.Mkdir(base, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := rootfstest.GenLayer(base, "", r); err != nil {
				t.Fatal(err)
			}
			drv := newDriver(t, name, home, false, rootfstest.Materialise)
			stack := rootspec.Stack{Layers: []string{base}}
			want := dump(t, drv, rootfs.Live{Dir: filepath.Join(home, "want"), Stack: stack})
			for i := range 25 {
				live := rootfs.Live{Dir: filepath.Join(home, fmt.Sprint("gen", i)), Stack: stack}
				killPresent(t, presentOrder{name, home, live}, time.Duration(r.IntN(6000))*time.Microsecond)
				if got := dump(t, drv, live); got != want {
					t.Fatalf("round %d\n%s", i, difference(want, got))
				}
			}
		})
	}
}

// killPresent starts a child that calls Present, and kills it some time after it began.
func killPresent(t *testing.T, o presentOrder, after time.Duration) {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), presentEnv+"="+string(text))
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	time.Sleep(after)
	_ = c.Process.Kill()
	_ = c.Wait()
	if errs.Len() > 0 {
		t.Fatal(errs.String())
	}
}

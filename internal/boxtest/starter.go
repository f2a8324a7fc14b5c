//go:build linux && (amd64 || arm64)

package boxtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

// StarterArgv0 is the argv[0] with which the test binary starts a box like a daemon that is then killed. The binary
// must call StarterMain.
const StarterArgv0 = "box-starter"

// StarterMain starts a box from the plan that it reads from in, and reports to out that the box runs. It returns the
// exit code when in ends.
func StarterMain(in io.Reader, out io.Writer) int {
	var c plan.Config
	d := json.NewDecoder(in)
	err := d.Decode(&c)
	if err == nil {
		_, _, err = box.Start(context.Background(), programtest.Programs(), c)
	}
	if err == nil {
		_, err = fmt.Fprintln(out, "started")
	}
	if err == nil {
		_, err = io.Copy(io.Discard, io.MultiReader(d.Buffered(), in))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

var started = []check{
	{"a daemon that dies while it starts a box leaves none, or all of it", nil, func(t *testing.T, tier Tier) {
		tries := 25
		if testing.Short() {
			tries = 7
		}
		c := tier.Config(t)
		took := startAndKill(t, c, time.Hour)
		for i := range tries {
			startAndKill(t, c, took*time.Duration(i)/time.Duration(tries-3)) // the last ones after it has started
		}
	}},
}

// startAndKill makes another process start a box, and kills that process when the box has started, or after a time. It
// checks that the box is complete, or that another one can be started at once. It returns how long the process lived.
func startAndKill(t *testing.T, c plan.Config, after time.Duration) (lived time.Duration) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Args = []string{StarterArgv0}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(in).Encode(c); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	said := make([]byte, len("started\n"))
	n, _ := io.ReadFull(out, said) // or the process was killed
	lived = time.Since(began)
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed

	b, err := box.Attach(t.Context(), c.RunDir)
	if fault.Is(err, fault.NotFound) && n == 0 {
		b, _, err = box.Start(t.Context(), programtest.Programs(), c)
	}
	if err != nil {
		t.Fatalf("killed after %v, having said %q: %v", lived, said[:n], err)
	}
	defer b.Close()
	one := &Box{Box: b, Config: c}
	if r := one.Sh(t, "echo alive"); r.Stdout != "alive\n" {
		t.Errorf("killed after %v: %+v", lived, r)
	}
	if err := b.Stop(t.Context(), 0); err != nil {
		t.Error(err)
	}
	return lived
}

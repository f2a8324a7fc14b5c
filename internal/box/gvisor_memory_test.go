//go:build linux && (amd64 || arm64) && !cgo

package box_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

var gvisorTier = boxtest.Tier{Name: plan.TierGvisor, Config: gvisorConfig}

// save takes a memory image of a box.
func save(t *testing.T, b *boxtest.Box) string {
	t.Helper()
	dir := filepath.Join(filepath.Dir(b.Config.RunDir), "image")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	f, err := b.Freeze(ctx)
	if err != nil {
		t.Fatal(err)
	}
	init, client, err := saveTo(ctx, f, dir)
	if err != nil {
		t.Fatal(err)
	}
	if client != nil {
		t.Error("an image of a sandbox that does not show coppice has that program")
		client.Close()
	}
	own, err := programtest.Programs().File(program.Init)
	if err != nil {
		t.Fatal(err)
	}
	if want, err := own.Stat(); err != nil {
		t.Error(err)
	} else if got, err := init.Stat(); err != nil || !os.SameFile(got, want) {
		t.Errorf("the image's init is %v: %v", got, err)
	}
	init.Close()
	if err := f.Thaw(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// saveTo writes a memory image of a frozen box into dir.
func saveTo(ctx context.Context, f *box.Frozen, dir string) (init, client *os.File, err error) {
	facts, err := box.MemoryFacts(programtest.Programs())
	if err != nil {
		return nil, nil, err
	}
	return f.Save(ctx, dir, facts)
}

// copyOf starts a box that is resumed from an image, on top of the same files.
func copyOf(t *testing.T, b *boxtest.Box, image, name string, change ...func(*plan.Config)) *boxtest.Box {
	t.Helper()
	return gvisorTier.Start(t, append(change, func(c *plan.Config) {
		c.Image, c.Name, c.ID = image, name, name
		c.Spec.Skeleton = b.Config.Spec.Skeleton
		for i := range c.Spec.Overlays { // the files that b wrote are a layer of the copy
			o := &c.Spec.Overlays[i]
			o.Lowers = append([]string{b.Config.Spec.Overlays[i].Upper}, o.Lowers...)
		}
	})...)
}

// TestGvisorResumes takes an image of a box with a command that waits for input, and sends input to the command and to
// its copy.
func TestGvisorResumes(t *testing.T) {
	t.Parallel()
	b := gvisorTier.Start(t)
	script := "n=0; while read line; do n=$((n+1)); echo $n $line $(hostname); done; echo end"
	s := b.Open(t, wire.ExecRequest{ID: "counter", Cmd: []string{"sh", "-c", script}, Stdin: true, Keep: true})
	boxtest.WaitStarted(t, s)
	boxtest.Send(t, s, wire.FrameStdin, []byte("one\n"))
	boxtest.WaitOutput(t, s, "1 one test\n")
	if r := b.Sh(t, "echo kept > /tmp/file"); r.Exit.Code != 0 {
		t.Fatalf("%+v", r)
	}
	image := save(t, b)
	boxtest.Send(t, s, wire.FrameStdin, []byte("two\n"))
	boxtest.WaitOutput(t, s, "2 two test\n")

	c := copyOf(t, b, image, "fork")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	steps, err := c.Rekey(ctx, box.Rekey{Seed: bytes.Repeat([]byte{7}, 32)})
	if err != nil {
		t.Fatalf("%v, after %+v", err, steps)
	}
	if err := c.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if r := c.Sh(t, "hostname; cat /tmp/file; echo $COPPICE_SANDBOX"); r.Stdout != "fork\nkept\nfork\n" {
		t.Errorf("the copy: %+v", r)
	}
	const ids = "cat /etc/machine-id /proc/sys/kernel/random/boot_id"
	if r := c.Sh(t, ids); r.Stdout != strings.Repeat("07", 16)+"\n07070707-0707-4707-8707-070707070707\n" {
		t.Errorf("identity of the copy: %+v", r)
	}
	if r := b.Sh(t, ids); strings.Contains(r.Stdout, "0707") || len(r.Stdout) != 33+37 {
		t.Errorf("identity of the original: %+v", r)
	}
	z := reattached(t, c, "counter")
	boxtest.Send(t, z, wire.FrameStdin, []byte("again\n"))
	boxtest.WaitOutput(t, z, "2 again fork\n")
	boxtest.Send(t, z, wire.FrameStdinEOF, nil)
	boxtest.WaitOutput(t, z, "end\n")
	boxtest.Send(t, s, wire.FrameStdin, []byte("three\n"))
	boxtest.WaitOutput(t, s, "3 three test\n")
}

// TestGvisorResumesWithinLimits takes an image of a command that never ends, and resumes it with a time limit of one
// second for commands.
func TestGvisorResumesWithinLimits(t *testing.T) {
	t.Parallel()
	b := gvisorTier.Start(t)
	s := b.Open(t,
		wire.ExecRequest{ID: "endless", Cmd: []string{"sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"},
			Keep: true})
	boxtest.WaitOutput(t, s, "ready\n")
	c := copyOf(t, b, save(t, b), "fork", func(c *plan.Config) { c.Limits.TimeMS = 1000 })
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	x, err := c.Wait(ctx, "endless")
	if err != nil || x.Code != 124 || x.Limit != wire.LimitTime || !strings.HasSuffix(x.Message, "time=1s") {
		t.Errorf("%+v, %v", x, err)
	}
}

// reattached attaches to a command that runs on in a copy.
func reattached(t *testing.T, c *boxtest.Box, id string) *box.Session {
	t.Helper()
	z, err := c.Reattach(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { z.Close() })
	_ = z.SetDeadline(time.Now().Add(5 * time.Minute))
	boxtest.WaitStarted(t, z)
	return z
}

// TestGvisorImageOfOther checks that files that are not a memory image are refused.
func TestGvisorImageOfOther(t *testing.T) {
	t.Parallel()
	c := gvisorConfig(t)
	c.Image = t.TempDir()
	for _, name := range box.ImageFiles {
		if err := os.WriteFile(filepath.Join(c.Image, name), []byte(strings.Repeat("x", 8192)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	b, _, err := box.Start(ctx, programtest.Programs(), c)
	if err == nil {
		_ = b.Stop(ctx, 0)
		t.Fatal("the box started")
	}
	if !fault.Is(err, fault.Unsupported) || !strings.Contains(fault.HintOf(err), "--files-only") {
		t.Errorf("%v, hint %q", err, fault.HintOf(err))
	}
}

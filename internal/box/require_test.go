//go:build linux && (amd64 || arm64)

package box_test

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

func TestStart_RefusesMissingProtection(t *testing.T) {
	if !caller().Root {
		t.Skip("needs real-root: only it shifts ids")
	}
	c := tier.Config(t)
	c.NoIDMap, c.Require = true, []string{"user"}
	if _, _, err := box.Start(t.Context(), programtest.Programs(), c); !fault.Is(err, fault.Unsupported) ||
		fault.HintOf(err) == "" {
		t.Fatalf("%v: want a refusal with a hint", err)
	}
	c.NoIDMap = false
	b, e, err := box.Start(t.Context(), programtest.Programs(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if e.State("user") != plan.On {
		t.Errorf("%+v", e)
	}
	if err := b.Stop(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

// TestStart_NeverFallsBackForSandboxFile checks that if a file of the sandbox makes the set-up
// fail, the start is refused and not repeated with fewer protections.
func TestStart_NeverFallsBackForSandboxFile(t *testing.T) {
	if !caller().Root {
		t.Skip("needs real-root: only it shifts ids")
	}
	c := tier.Config(t)
	c.Access.ReadOnly = nil
	c.User = "missing-user" // missing in the passwd of the sandbox, which is read after the root is mounted
	if _, _, err := box.Start(t.Context(), programtest.Programs(), c); err == nil {
		t.Fatal("the box started")
	}
	log, err := os.ReadFile(c.RunDir + "/keeper.log")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(log, []byte("without")) {
		t.Errorf("the start was repeated with fewer protections: %s", log)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte(c.RunDir+"/root")) {
		t.Errorf("the root is still mounted, %v", err)
	}
	if err := unix.Rmdir(c.RunDir + "/root"); err != nil {
		t.Errorf("the mount point is still in use: %v", err)
	}
}

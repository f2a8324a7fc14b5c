//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// alone are the times of plain gVisor, in nanoseconds: see command bench/alone.
type alone struct {
	Starts []time.Duration `json:"starts"`
	Execs  []time.Duration `json:"execs"`
}

// gvisorAlone measures plain gVisor, of the version that is linked in.
func (b *bench) gvisorAlone(starts, execs int) (a alone, err error) {
	bin := filepath.Join(b.dir, "alone")
	// Static: gVisor starts it in a root without libraries.
	if err := b.host("env", "CGO_ENABLED=0", "go", "build", "-C", "bench", "-o", bin, "./alone"); err != nil {
		return a, err
	}
	cmd := exec.CommandContext(b.ctx, bin, filepath.Join(b.dir, "containers"), fmt.Sprint(starts), fmt.Sprint(execs))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.Output()
	if err != nil {
		return a, fmt.Errorf("gVisor alone: %w", err)
	}
	return a, json.Unmarshal(out, &a)
}

//go:build linux && (amd64 || arm64)

package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// containerID is the same in every conductor: each has its own state. runc derives the name of a control group from it,
// which must not exist.
const containerID = "coppice-container"

// runtimePatience bounds how long a runtime may take to start a container.
const runtimePatience = limit.RuntimeSeconds * time.Second

// container is one container that a runtime starts.
type container struct {
	name     string // of the runtime
	program  string // its path
	state    string // a directory for it and the bundle
	patience time.Duration
	log      *os.File // the keeper's
}

// start runs the runtime with two descriptors for PID 1, which stay the caller's, and waits until it has exited. Then
// it calls begin, which returns what PID 1 answers, or an error if no process has PID 1's end of the setup link. So
// nothing of the sandbox runs beside the runtime.
func (c container) start(ctx context.Context, s spec, link, setup *os.File, begin func() answer) error {
	b, err := json.Marshal(s)
	if err != nil {
		return fault.Wrap(err, "describe the container")
	}
	if err := os.WriteFile(path.Join(c.state, "config.json"), b, 0o600); err != nil {
		return fault.Wrap(err, "describe the container")
	}
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	r, w, err := os.Pipe()
	if err != nil {
		return fault.Wrap(err, "start the OCI runtime")
	}
	said := &tail{log: c.log, all: make(chan struct{})}
	go func() { // until the sandbox ends
		defer close(said.all)
		initlink.CopyLog(r, said)
	}()
	cmd := exec.CommandContext(ctx, c.program, c.args()...)
	cmd.Dir = c.state
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + c.state, "XDG_RUNTIME_DIR=" + c.state}
	cmd.Stdout, cmd.Stderr = w, w
	cmd.ExtraFiles = []*os.File{link, setup}
	err = cmd.Run()
	w.Close()
	setup.Close() // begin ends if no other process has it
	if ctx.Err() != nil {
		return fault.New(fault.Timeout, "the OCI runtime %s has not started the container within %s%s", c.name, c.patience,
			said.quote()).WithHint("%s", chooseHint)
	}
	if err != nil {
		return fault.New(fault.Unsupported, "the OCI runtime %s cannot start a container here: %v%s", c.name, err,
			said.quote()).WithHint("%s", chooseHint)
	}
	began := make(chan answer, 1)
	go func() { began <- begin() }()
	var a answer
	select {
	case a = <-began:
	case <-ctx.Done():
		a.err = ctx.Err()
	}
	if a.Err != nil {
		return fault.New(fault.Kind(a.Err.Kind), "the OCI runtime %s cannot be used: %s", c.name, a.Err.Message).
			WithHint("%s", chooseHint)
	}
	if a.err != nil {
		return fault.New(fault.Unsupported, "the OCI runtime %s has exited without an error, but PID 1 of the container "+
			"does not run%s", c.name, said.quote()).WithHint("%s", chooseHint)
	}
	return nil
}

// chooseHint is the hint for a runtime that does not work.
const chooseHint = "choose another with --runtime, use --tier supervised, or see what this host supports: " +
	"coppice system probe"

// args returns the arguments of the runtime.
func (c container) args() []string {
	args := []string{"--root", path.Join(c.state, "runtime")}
	switch { // the keeper's group contains everything
	case strings.HasPrefix(c.name, "runc"): // also runc-1.3
		args = append(args, "--rootless", "true") // it needs no control group then
	case strings.HasPrefix(c.name, "crun"):
		args = append(args, "--cgroup-manager", "disabled")
	}
	return append(args, "run", "--bundle", c.state, "--detach", "--preserve-fds", "2", containerID)
}

// alone returns an error unless the container's PID 1 is the only process besides the caller, PID 1 of the pid
// namespace around it. A process that the runtime left behind would run beside commands, with more rights than they
// have. What has exited, or is about to, does not count.
func alone() error {
	for end := time.Now().Add(leavingPatience); ; time.Sleep(5 * time.Millisecond) {
		names, err := others()
		if err != nil || len(names) <= 1 { // none: its end of the setup link says so
			return err
		}
		if time.Now().After(end) {
			return fault.New(fault.Unsupported, "after it has exited, %d processes run instead of one: %s", len(names),
				strings.Join(names[:min(len(names), 8)], ", "))
		}
	}
}

// leavingPatience is how long processes may take to exit after the runtime has.
const leavingPatience = 10 * time.Second

// others returns the names of the processes of the pid namespace, except the caller and those that have exited.
func others() (names []string, err error) {
	list, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, fault.Wrap(err, "list the processes of the container")
	}
	for _, file := range list {
		stat, err := os.ReadFile(file)
		if err != nil || file == fmt.Sprintf("/proc/%d/stat", os.Getpid()) {
			continue // or it has exited
		}
		_, named, _ := strings.Cut(string(stat), "(")
		name, state, found := cutLast(named, ") ")
		if found && !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X") {
			names = append(names, strconv.QuoteToASCII(name))
		}
	}
	return names, nil
}

// cutLast is strings.Cut at the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// reap waits until the processes below this one, the container, are gone.
func reap() error {
	for {
		_, err := unix.Wait4(-1, nil, 0, nil)
		switch {
		case errors.Is(err, unix.ECHILD):
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fault.Wrap(err, "wait for the container")
		}
	}
}

// maxSaid bounds how much of the output of a runtime an error quotes, in bytes.
const maxSaid = 512

// tail keeps the end of what a runtime has written.
type tail struct {
	log *os.File      // where all of it is written as well
	all chan struct{} // closed when no process can write more

	mu   sync.Mutex
	text string // guarded by mu
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.text += string(p)
	t.text = t.text[max(0, len(t.text)-maxSaid):]
	t.mu.Unlock()
	return t.log.Write(p)
}

// quote returns the text for an error, on one line.
func (t *tail) quote() string {
	select {
	case <-t.all:
	case <-time.After(saidPatience):
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.Join(strings.Fields(t.text), " ")
	if text == "" {
		return ""
	}
	return ": it says: " + text
}

// saidPatience is how long quote waits for the rest of the output, which a process that was left behind can hold up.
const saidPatience = time.Second

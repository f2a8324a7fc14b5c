//go:build linux && (amd64 || arm64)

package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// listName is a file in a run directory that lists the control groups that its keepers have created, one path per line.
// A group is listed before it is created, and the file is removed after all groups. So a killed keeper leaves the names
// of its groups.
const listName = "cgroups"

// groupPrefix is the prefix of the names of the control groups of sandboxes.
const groupPrefix = "coppice-"

// list adds a group that is about to be created to the list of a run directory. It does nothing if runDir is "".
func list(runDir, path string) error {
	if runDir == "" {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(runDir, listName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.WriteString(path + "\n")
		err = errors.Join(err, f.Close())
	}
	return fault.Wrap(err, "list a control group of the sandbox")
}

// Left reports whether there may be control groups in the list of a run directory.
func Left(runDir string) bool {
	_, err := os.Lstat(filepath.Join(runDir, listName))
	return !errors.Is(err, os.ErrNotExist)
}

// RemoveLeft removes the control groups that keepers of a run directory have created and not removed. It waits up to
// patience for the processes in each group to exit, and kills those that are frozen: they cannot notice that their
// keeper is gone. Groups with processes remain, with an error, and so does the list,
// for the next call. The caller holds the lock of the run directory, so no keeper creates a group there at the same
// time.
func RemoveLeft(runDir string, patience time.Duration) error {
	name := filepath.Join(runDir, listName)
	b, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "read the list of control groups in %s", runDir)
	}
	var all []error
	for path := range strings.Lines(string(b)) {
		path = strings.TrimSuffix(path, "\n")
		// Other lines are incomplete: the keeper was killed while it wrote them.
		if filepath.IsAbs(path) && strings.HasPrefix(filepath.Base(path), groupPrefix) {
			all = append(all, removeGroup(path, patience))
		}
	}
	if err := errors.Join(all...); err != nil {
		return err
	}
	return fault.Wrap(os.Remove(name), "remove the list of control groups in %s", runDir)
}

// removeGroup removes a control group, and waits for the processes in it to exit: the kernel does not report when the
// last one has left. A missing group is not an error.
func removeGroup(path string, patience time.Duration) error {
	if err := killFrozen(path); err != nil {
		return err
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		err := unix.Rmdir(path)
		// rmdir(2) may return a permission error for a missing group.
		if _, gone := os.Lstat(path); err == nil || errors.Is(gone, os.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return fault.Wrap(err, "remove the control group %s", path)
		}
	}
}

// killFrozen kills the processes of a group that is frozen. Where the kernel cannot (cgroup.kill needs Linux 5.14), it
// thaws them, and init ends when it finds its link to the keeper closed.
func killFrozen(path string) error {
	b, err := os.ReadFile(filepath.Join(path, "cgroup.freeze"))
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOTDIR):
		return nil // no group, or one of version 1
	case err != nil:
		return fault.Wrap(err, "read the state of the control group %s", path)
	case strings.TrimSpace(string(b)) != "1":
		return nil
	}
	err = os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		err = os.WriteFile(filepath.Join(path, "cgroup.freeze"), []byte("0"), 0)
	}
	return fault.Wrap(err, "end the frozen processes of the control group %s", path)
}

//go:build linux && (amd64 || arm64)

package procs

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// unendedName is the beginning of the name of a file in the run directory of a locked workspace, which ends with the
// boot id. The file is created before the first command runs, and removed only when it is proved that no process of the
// sandbox is left. It holds an origin. After a reboot, nothing of it is needed but its name.
const unendedName = "unended-"

// ExpectEnd creates the file of a run directory that says that processes of a locked workspace may run. The caller is
// the keeper, and no command has run. init is its child that will start them. root says that they may have other users
// than the caller.
func ExpectEnd(runDir string, init int, root bool) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	o, err := originOf(init, root)
	if err != nil {
		return err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return fault.Wrap(err, "describe the processes of the sandbox")
	}
	name := filepath.Join(runDir, unendedName+boot)
	if err = os.WriteFile(name+".new", text, 0o600); err == nil { // a killed keeper leaves no half of the file
		err = os.Rename(name+".new", name)
	}
	return fault.Wrap(err, "create %s", name)
}

// Ended removes the file that ExpectEnd created: the kernel has answered that the caller, which is the keeper, has no
// child left.
func Ended(runDir string) error {
	names, err := unended(runDir)
	for _, name := range names {
		err = errors.Join(err, os.Remove(name))
	}
	return fault.Wrap(err, "record in %s that no process of the sandbox is left", runDir)
}

// EndExpected reports whether a run directory may have a file of ExpectEnd.
func EndExpected(runDir string) (bool, error) {
	names, err := unended(runDir)
	return len(names) > 0, err
}

// ProveEnd returns nil if no process of the locked workspaces that have run in a run directory is left, and removes the
// files of ExpectEnd. It waits up to patience for those that are left. Conflict is that some may be left, and the hint
// says how to end them. The caller holds the lock of the run directory, so its keeper has ended.
func ProveEnd(runDir string, patience time.Duration) error {
	names, err := unended(runDir)
	if err != nil || len(names) == 0 {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	for _, name := range names {
		if filepath.Base(name) != unendedName+boot {
			continue // of an earlier boot, or of a keeper that was killed before any command ran
		}
		if err := proveEnd(name, patience); err != nil {
			return err
		}
	}
	return Ended(runDir)
}

func proveEnd(name string, patience time.Duration) error {
	o, err := readOrigin(name)
	var found List
	if err == nil {
		found, err = o.leftWithin(patience)
	}
	if err != nil {
		return fault.New(fault.Conflict, "the sandbox's monitor was killed, and whether processes of the sandbox are left "+
			"cannot be determined").Because(err).
			WithHint("end what is left of it, or the container in which it ran; then: rm %s", name)
	}
	if len(found) == 0 {
		return nil
	}
	pids := make([]string, min(len(found), maxNamed))
	for i := range pids {
		pids[i] = strconv.Itoa(found[i].PID)
	}
	all := strings.Join(pids, " ")
	return fault.New(fault.Conflict, "the sandbox's monitor was killed, and processes of the sandbox are left: %s", all).
		WithHint("end them, then try again: kill -KILL %s; if they are of another program: rm %s", all, name)
}

// maxNamed is the maximum number of processes that an error names.
const maxNamed = 32

// unended returns the files of ExpectEnd in a run directory, which need not exist.
func unended(runDir string) (names []string, err error) {
	entries, err := os.ReadDir(runDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fault.Wrap(err, "find out whether processes of the sandbox are left")
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), unendedName) {
			names = append(names, filepath.Join(runDir, e.Name()))
		}
	}
	return names, nil
}

func readOrigin(name string) (o origin, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return o, err
	}
	if len(o.Above) == 0 || o.Init.PID == 0 {
		return o, fault.New(fault.Corrupt, "%s is incomplete", name)
	}
	st, err := os.Stat(name)
	if err != nil {
		return o, err
	}
	o.uid = strconv.Itoa(int(st.Sys().(*syscall.Stat_t).Uid))
	return o, nil
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), fault.Wrap(err, "read the boot id")
}

package daemon

import (
	"bufio"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/admission"
	"github.com/coppice-dev/coppice/internal/fault"
)

// ownMemory is the daemon's own memory: its soft limit, and the gate for requests.
type ownMemory struct {
	soft   int64
	within int64 // the soft limit, or the available memory if that is less
	gate   *admission.Gate
}

// limitMemory sets the soft memory limit of this process, and undo restores it. If given is 0, the limit is
// derived from the control group and the host's memory.
func limitMemory(given int64, log *slog.Logger) (m ownMemory, undo func(), err error) {
	available, err := availableMemory("/")
	if err != nil {
		return m, nil, err
	}
	m.soft = given
	if given <= 0 {
		m.soft = admission.SoftLimit(available)
	}
	// The soft limit may exceed the available memory.
	m.within = min(m.soft, available)
	before := debug.SetMemoryLimit(m.soft)
	m.gate = admission.New(
		admission.Options{Memory: admission.ForRequests(m.within),
			Heap: admission.NewHeap(admission.ForHeap(m.within)), Log: log})
	return m, func() { debug.SetMemoryLimit(before) }, nil
}

// status returns the memory state for the daemon's status.
func (m ownMemory) status() *wire.DaemonMemory {
	s := m.gate.Stats()
	return &wire.DaemonMemory{Limit: m.soft, Live: admission.Live(), Requests: s.Memory, Held: s.Held, Waiting: s.Waiting,
		Refused: s.Refused}
}

// availableMemory returns how many bytes this process may use, together with everything else in its control
// groups: the minimum of their limits and the host's memory. root is where the host's file systems are mounted.
func availableMemory(root string) (int64, error) {
	total, err := totalMemory(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return 0, err
	}
	group, err := unifiedGroup(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0, err
	}
	least := total
	for ; group != ""; group = parentGroup(group) {
		for _, name := range []string{"memory.max", "memory.high"} {
			n, err := groupLimit(filepath.Join(root, "sys/fs/cgroup", group, name))
			if err != nil {
				return 0, err
			}
			least = min(least, n)
		}
	}
	return least, nil
}

// totalMemory reads the host's memory from meminfo(5).
func totalMemory(name string) (int64, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, fault.Wrap(err, "read the size of the host's memory")
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "MemTotal:" {
			continue
		}
		if kb, err := strconv.ParseInt(f[1], 10, 64); err == nil && kb > 0 && kb < math.MaxInt64>>10 {
			return kb << 10, nil
		}
	}
	return 0, fault.New(fault.Unsupported, "memory size not found in %s", name).
		WithHint("set the limit: coppice serve --memory 1GiB")
}

// unifiedGroup returns the control group (version 2) of this process as a path that begins with a slash; "" if
// there is none.
func unifiedGroup(name string) (string, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fault.Wrap(err, "find the daemon's control group")
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if path, ok := strings.CutPrefix(sc.Text(), "0::"); ok {
			return filepath.Clean("/" + path), nil
		}
	}
	return "", fault.Wrap(sc.Err(), "find the daemon's control group")
}

// parentGroup returns the parent of a group; "" for the root.
func parentGroup(group string) string {
	if group == "/" {
		return ""
	}
	return filepath.Dir(group)
}

// groupLimit returns a limit of a control group. It is math.MaxInt64 for "max", and if the group has no such
// file: the root group, and one whose controller is disabled.
func groupLimit(name string) (int64, error) {
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return math.MaxInt64, nil
	}
	if err != nil {
		return 0, fault.Wrap(err, "read the limit of the daemon's control group")
	}
	s := strings.TrimSpace(string(b))
	if s == "max" {
		return math.MaxInt64, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fault.New(fault.Unsupported, "invalid limit %[2]q in %[1]s", name, s)
	}
	return n, nil
}

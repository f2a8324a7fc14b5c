//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
)

// count is a kernel object that is counted for each user of a user namespace, and limited by a file of /proc/sys/user
// (namespaces(7)).
type count struct {
	name string
	most int64
	host string // file below /proc/sys with the host's limit for one user; "" if most is the only limit
}

// counts lists the objects that a sandbox could exhaust for the user that started it: the kernel also counts the
// objects of a user namespace against its owner (kernel/ucount.c).
var counts = []count{
	{"max_inotify_instances", limit.Inotify, "fs/inotify/max_user_instances"},
	{"max_inotify_watches", limit.InotifyWatches, "fs/inotify/max_user_watches"},
	{"max_fanotify_groups", limit.Fanotify, "fs/fanotify/max_user_groups"},
	{"max_fanotify_marks", limit.FanotifyMarks, "fs/fanotify/max_user_marks"},
	{"max_user_namespaces", 0, ""},
	{"max_cgroup_namespaces", limit.Namespaces, ""},
	{"max_ipc_namespaces", limit.Namespaces, ""},
	{"max_mnt_namespaces", limit.Namespaces, ""},
	{"max_net_namespaces", limit.Namespaces, ""},
	{"max_pid_namespaces", limit.Namespaces, ""},
	{"max_time_namespaces", limit.Namespaces, ""},
	{"max_uts_namespaces", limit.Namespaces, ""},
}

// boundCounts limits the counts of the caller's user namespace, which is the sandbox's: a procfs shows each reader the
// limits of the reader's own namespace. Commands lack CAP_SYS_RESOURCE and cannot raise them. If /proc/sys cannot be
// written, the protection is weak.
func boundCounts(proc int) ([]plan.Item, error) {
	for _, c := range counts {
		n := c.most
		if c.host != "" {
			host, ok, err := readCount(proc, "sys/"+c.host)
			if err != nil {
				return nil, fault.Wrap(err, "read /proc/sys/%s", c.host)
			}
			if !ok {
				continue // a kernel without such objects
			}
			n = limit.OfHost(host, c.most)
		}
		file, err := openBeneath(proc, "sys/user/"+c.name, unix.O_WRONLY)
		if errors.Is(err, unix.ENOENT) {
			continue // an older kernel does not count these per namespace
		}
		if err == nil {
			_, err = unix.Write(file, []byte(strconv.FormatInt(n, 10)))
			unix.Close(file)
		}
		switch {
		case errors.Is(err, unix.EROFS), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
			return []plan.Item{{Name: plan.Counts, State: plan.Weak, Detail: fmt.Sprintf(
				"cannot write /proc/sys/user/%s (%v): the sandbox can exhaust the inotify instances and watches of its "+
					"owner", c.name, err)}}, nil
		case err != nil:
			return nil, fault.Wrap(err, "limit /proc/sys/user/%s", c.name)
		}
	}
	return nil, nil
}

// readCount reads a number from a file below a procfs. ok is false if the file does not exist.
func readCount(proc int, name string) (n int64, ok bool, err error) {
	fd, err := openBeneath(proc, name, unix.O_RDONLY)
	if errors.Is(err, unix.ENOENT) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer unix.Close(fd)
	var b [32]byte
	size, err := unix.Read(fd, b[:])
	if err != nil {
		return 0, false, err
	}
	n, err = strconv.ParseInt(strings.TrimSpace(string(b[:size])), 10, 64)
	return n, err == nil, err
}

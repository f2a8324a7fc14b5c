//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespace is set in the environment of the child process of TestCounts_BoundUserNamespace.
const inNamespace = "COPPICE_COUNTS_TEST"

// TestCounts_BoundUserNamespace exhausts each count in a user namespace with limits, as a sandbox could.
func TestCounts_BoundUserNamespace(t *testing.T) {
	if os.Getenv(inNamespace) != "" {
		useUp(t)
		return
	}
	t.Parallel()
	var out bytes.Buffer
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), inNamespace+"=1"), &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Start(); err != nil {
		t.Skip("needs user-namespaces: " + err.Error())
	}
	err := cmd.Wait()
	t.Logf("%s", out.Bytes())
	if err != nil {
		t.Error(err)
	}
}

// useUp bounds the counts of its user namespace, and exhausts each.
func useUp(t *testing.T) {
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(proc)
	weak, err := boundCounts(proc)
	if err != nil || len(weak) > 0 {
		t.Skipf("needs a writable /proc/sys/user: %v, %v", weak, err)
	}
	for _, c := range counts {
		most, ok, err := readCount(proc, "sys/user/"+c.name)
		if err == nil && !ok {
			t.Logf("%s: this kernel does not count them for each namespace", c.name)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Run(c.name, func(t *testing.T) {
			n, err := take(t, c.name, int(most)+1)
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skipf("needs %s: %v", strings.TrimPrefix(c.name, "max_"), err)
			}
			want := unix.ENOSPC
			if c.name == "max_inotify_instances" || c.name == "max_fanotify_groups" {
				want = unix.EMFILE
			}
			if int64(n) != most || !errors.Is(err, want) {
				t.Errorf("got %d of at most %d, then %v; want all of them, then %v", n, most, err, want)
			}
		})
	}
}

// take creates up to n objects of a kind. It returns how many it created, and the error that stopped it.
func take(t *testing.T, kind string, n int) (int, error) {
	switch kind {
	case "max_inotify_instances":
		return open(t, n, func() (int, error) { return unix.InotifyInit1(unix.IN_CLOEXEC) })
	case "max_fanotify_groups":
		return open(t, n, fanotify)
	case "max_inotify_watches":
		return mark(t, n, func() (int, error) { return unix.InotifyInit1(unix.IN_CLOEXEC) }, func(fd int, name string) error {
			_, err := unix.InotifyAddWatch(fd, name, unix.IN_OPEN)
			return err
		})
	case "max_fanotify_marks":
		return mark(t, n, fanotify, func(fd int, name string) error {
			err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN, unix.AT_FDCWD, name)
			if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EXDEV) {
				return errors.ErrUnsupported // the file system lacks the identity that fanotify requires
			}
			return err
		})
	case "max_user_namespaces": // a single thread cannot enter one
		cmd := exec.Command("/proc/self/exe", "-test.run=^$")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
		if err := cmd.Run(); err != nil {
			return 0, err
		}
		return 1, nil
	}
	return enter(n, map[string]int{
		"max_cgroup_namespaces": unix.CLONE_NEWCGROUP, "max_ipc_namespaces": unix.CLONE_NEWIPC,
		"max_mnt_namespaces": unix.CLONE_NEWNS, "max_net_namespaces": unix.CLONE_NEWNET,
		"max_pid_namespaces": unix.CLONE_NEWPID, "max_time_namespaces": unix.CLONE_NEWTIME,
		"max_uts_namespaces": unix.CLONE_NEWUTS,
	}[kind])
}

// fanotify creates a group with the flags that a user without privileges may use.
func fanotify() (int, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_FID|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		return -1, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return fd, err
}

// open opens up to n descriptors, and closes them when the test ends.
func open(t *testing.T, n int, one func() (int, error)) (int, error) {
	for i := range n {
		fd, err := one()
		if err != nil {
			return i, err
		}
		t.Cleanup(func() { unix.Close(fd) })
	}
	return n, nil
}

// mark marks up to n files, spread over several watchers.
func mark(t *testing.T, n int, watcher func() (int, error), one func(fd int, name string) error) (int, error) {
	var watchers [8]int
	for i := range watchers {
		fd, err := watcher()
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		watchers[i] = fd
	}
	name, dir := "", t.TempDir()
	for i := range n {
		if i%len(watchers) == 0 {
			name = filepath.Join(dir, fmt.Sprint(i))
			if err := unix.Mknod(name, unix.S_IFREG|0o600, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := one(watchers[i%len(watchers)], name); err != nil {
			return i, err
		}
	}
	return n, nil
}

// enter makes up to n threads each enter a new namespace, and keeps all of them until it returns.
func enter(n, flag int) (int, error) {
	var all sync.WaitGroup
	leave, entered := make(chan struct{}), make(chan error)
	defer all.Wait()
	defer close(leave)
	for i := range n {
		all.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread exits and releases the namespace
			entered <- unix.Unshare(flag)
			<-leave
		})
		if err := <-entered; err != nil {
			return i, err
		}
	}
	return n, nil
}

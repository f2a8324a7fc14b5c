//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Halt sends SIGSTOP to every thread of process pid. That is necessary if a thread may be waiting for an answer of
// Serve. Such a thread takes no signal but SIGKILL before it is answered, yet the kernel may choose it for a signal
// that is sent to the process (kernel/signal.c, complete_signal), and then no thread stops. Any other thread that takes
// the signal stops the whole process. SIGCONT to the process undoes Halt. A process that does not exist is not an
// error.
func Halt(pid int) error {
	dir, err := os.Open("/proc/" + strconv.Itoa(pid) + "/task")
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	var errs error
	for _, name := range names {
		tid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if err := unix.Tgkill(pid, tid, unix.SIGSTOP); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

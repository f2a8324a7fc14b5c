package rootspec

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/coppice-dev/coppice/internal/fault"
)

// UserNamespace creates a user namespace with these maps, and returns a descriptor of it, for Options.IDMapFD; the
// caller closes it. The namespace needs no process: a child is started in it under ptrace, which stops it before its
// first instruction, and killed after /proc/PID/ns/user was opened.
func UserNamespace(uids, gids []syscall.SysProcIDMap) (*os.File, error) {
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	p, err := os.StartProcess("/proc/self/exe", []string{"coppice-userns"}, &os.ProcAttr{
		Sys: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: uids, GidMappings: gids,
			Ptrace:    true,
			Pdeathsig: syscall.SIGKILL,
		},
	})
	if err != nil {
		return nil, fault.Wrap(err, "create a user namespace")
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", p.Pid))
	_ = p.Kill()
	_, _ = p.Wait()
	if err != nil {
		return nil, fault.Wrap(err, "open the user namespace")
	}
	return f, nil
}

//go:build linux && (amd64 || arm64)

package seccomp

import (
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkFcntl measures the cost of the filters for fcntl, whose command argument they read: without filters, without
// the rule (the kernel then caches the call as allowed), and with it.
func BenchmarkFcntl(b *testing.B) {
	without := slices.DeleteFunc(hardeningRules(Options{Report: true}),
		func(r Rule) bool { return slices.Contains(r.Calls, unix.SYS_FCNTL) })
	give := NotifyOptions{Emulate: true, Promote: true, Trace: true, Refuse: Options{Report: true}}
	for _, v := range []struct {
		name    string
		filters [][]unix.SockFilter
	}{
		{"unfiltered", nil},
		{"cached", [][]unix.SockFilter{Notifying(give), assemble(without, Kill, Errno(unix.ENOSYS))}},
		{"read", [][]unix.SockFilter{Notifying(give), Hardening(Options{Report: true})}},
		{"read-by-one", [][]unix.SockFilter{Hardening(Options{})}},
	} {
		b.Run(v.name, func(b *testing.B) {
			done := make(chan error)
			go func() {
				runtime.LockOSThread() // the thread, and with it the filters, ends with the goroutine
				err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
				for i, f := range v.filters {
					if err == nil {
						flags := KeepSpeculation
						if i == 0 && len(v.filters) > 1 {
							flags |= Listener
						}
						_, err = Install(f, flags)
					}
				}
				for range b.N {
					_, _, _ = unix.RawSyscall(unix.SYS_FCNTL, 0, unix.F_GETFL, 0)
				}
				done <- err
			}()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}

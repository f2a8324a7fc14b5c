//go:build linux && (amd64 || arm64)

package notify

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// concurrentTerminals opens the slaves of terminals in several threads at once. Each must get that of its own.
func concurrentTerminals(a *actor) {
	time.AfterFunc(20*time.Second, func() { a.must(fmt.Errorf("some threads got no answer: %w", os.ErrDeadlineExceeded)) })
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
			a.must(err)
			defer unix.Close(master)
			a.must(unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0))
			number, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
			a.must(err)
			for range 200 {
				slave, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY)
				if e != 0 {
					a.must(fmt.Errorf("open the slave of terminal %d: %w", number, e))
				}
				var st unix.Stat_t
				a.must(unix.Fstat(int(slave), &st))
				if got := int(unix.Minor(st.Rdev)); got != number {
					a.must(fmt.Errorf("the slave of terminal %d is that of %d: %w", number, got, os.ErrInvalid))
				}
				unix.Close(int(slave))
			}
		})
	}
	all.Wait()
}

func TestTerminals_AreTheCallers(t *testing.T) {
	t.Parallel()
	userNamespaces(t)
	for kind, c := range worldKinds(t) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c.Scenario = "terminals"
			prepare(t, &c, func(string) {})
			c.run(t)
		})
	}
}

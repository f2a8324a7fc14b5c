//go:build linux

package seccomp

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestStubs_CannotTrapCPUID(t *testing.T) {
	t.Parallel()
	const setFS, getCPUID = 0x1002, 0x1011
	for what, want := range map[uint64]Action{archSetCPUID: Errno(unix.ENODEV), setFS: Allow, getCPUID: Allow} {
		if got, _ := run(t, Stubs(), call{nr: unix.SYS_ARCH_PRCTL, arch: nativeArch, args: [6]uint64{what}}); got != want {
			t.Errorf("arch_prctl %#x: %#x, want %#x", what, got, want)
		}
	}
}

package thread

import "golang.org/x/sys/unix"

// HasCapability reports whether the calling thread has a capability (unix.CAP_SYS_ADMIN) in effect, in its user
// namespace.
func HasCapability(c uint) bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&hdr, &data[0]) == nil && data[c/32].Effective&(1<<(c%32)) != 0
}

//go:build !linux

package spare

// umount does nothing: gVisor runs on Linux alone.
func umount([]string) {}

//go:build !linux

package lineapi

import "syscall"

// hungUp is not known here, where no daemon runs.
func hungUp(syscall.Conn) bool { return false }

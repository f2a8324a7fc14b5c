//go:build !linux

package lineapi

import "syscall"

// hungUp returns false: no daemon runs on this system.
func hungUp(syscall.Conn) bool { return false }

// peerUID returns nil.
func peerUID(syscall.Conn) *uint32 { return nil }

//go:build linux

package escape

import "golang.org/x/sys/unix"

var archCalls = map[string]uintptr{"iopl": unix.SYS_IOPL, "ioperm": unix.SYS_IOPERM, "modify_ldt": unix.SYS_MODIFY_LDT}

// int80 makes a system call by the 32-bit gate.
func int80(nr uint32) (result int32, answered bool) { return gate(nr), true }

func gate(nr uint32) int32

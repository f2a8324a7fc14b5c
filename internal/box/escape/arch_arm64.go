//go:build linux

package escape

var archCalls = map[string]uintptr{}

// int80 has no counterpart: a 64-bit process cannot make 32-bit calls.
func int80(uint32) (result int32, answered bool) { return 0, false }

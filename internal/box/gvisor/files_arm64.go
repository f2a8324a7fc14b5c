package gvisor

// withArch adds the calls that only this architecture has: none.
func withArch(ops map[uintptr]fileOp) map[uintptr]fileOp { return ops }

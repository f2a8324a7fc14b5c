//go:build linux

package rootspec

// OldKernel makes Mount do what kernels before 6.15, or before 6.5, need.
func OldKernel(before65 bool) Options { return Options{settle: true, classic: before65} }

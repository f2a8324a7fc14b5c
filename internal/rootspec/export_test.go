//go:build linux

package rootspec

// OldKernel makes Mount use the code paths for kernels before 6.15, or before 6.5.
func OldKernel(before65 bool) Options { return Options{settle: true, classic: before65} }

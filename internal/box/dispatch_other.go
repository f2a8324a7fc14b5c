//go:build !linux || !(amd64 || arm64)

package box

// Dispatch handles nothing: there are no boxes here.
func Dispatch([]string) (handled bool, code int) { return false, 0 }

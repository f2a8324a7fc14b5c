//go:build amd64 || arm64

package box

import "github.com/coppice-dev/coppice/internal/box/guest"

// keeperArgv0 is the name that makes the binary a keeper.
const keeperArgv0 = "coppice-keeper"

// Dispatch runs the keeper or init when args[0] names one of them, and gives the
// exit code. It must come first in main, before anything is parsed, opened or
// started; test binaries that use boxes call it in TestMain.
func Dispatch(args []string) (handled bool, code int) {
	if len(args) == 0 {
		return false, 0
	}
	switch args[0] {
	case keeperArgv0:
		return true, RunKeeper()
	case guest.Argv0:
		return true, guest.Main()
	}
	return false, 0
}

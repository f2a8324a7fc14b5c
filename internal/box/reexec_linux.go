//go:build amd64 || arm64

package box

import (
	"os"

	_ "github.com/coppice-dev/coppice/internal/box/inner" // makes a process init
)

// keeperArgv0 is the name that makes the binary a keeper.
const keeperArgv0 = "coppice-keeper"

// init makes the process a keeper when the binary was started by that name, so that no
// program that imports this package has to. It is not left to main because packages are
// initialised in the order of their paths, each after what it imports
// (https://go.dev/ref/spec#Program_initialization): what the daemon and the command line
// import comes after this, and its initialisation would be a third of the time that a
// keeper takes to start. It does nothing else.
func init() {
	if len(os.Args) > 0 && os.Args[0] == keeperArgv0 {
		os.Exit(runKeeper()) //nolint:forbidigo // the process is the keeper and nothing more
	}
}

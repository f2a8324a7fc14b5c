//go:build amd64 || arm64

package box

import (
	"os"

	"github.com/coppice-dev/coppice/internal/box/guest"
	"github.com/coppice-dev/coppice/internal/box/inner"
	"github.com/coppice-dev/coppice/internal/box/plan"
)

// keeperArgv0 is the name that makes the binary a keeper.
const keeperArgv0 = "coppice-keeper"

// init makes the process a keeper or a box's init when the binary was started by
// that name, so that no program that imports this package has to. It is not left to
// main because packages are initialised in the order of their paths, each after what
// it imports (https://go.dev/ref/spec#Program_initialization): what the daemon and
// the command line import comes after this, and its initialisation is a third of the
// time that the two processes of a box take to start. It does nothing else.
func init() {
	if len(os.Args) == 0 {
		return
	}
	switch os.Args[0] {
	case keeperArgv0:
		os.Exit(runKeeper()) //nolint:forbidigo // the process is the keeper and nothing more
	case plan.InnerPath:
		os.Exit(inner.Main()) //nolint:forbidigo // the process is PID 1 of a sandbox's own kernel and nothing more
	case guest.Argv0:
		os.Exit(guest.Main()) //nolint:forbidigo // the process is a box's init and nothing more
	}
}

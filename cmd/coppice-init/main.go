// Command coppice-init runs the small processes in and around one sandbox: its monitor, its PID 1, and the
// self-tests that probe the host. argv[0] selects which. The coppice daemon starts it, or another coppice-init.
package main

import (
	"fmt"
	"os"

	"github.com/coppice-dev/coppice/internal/box/guest"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/keeper"
	"github.com/coppice-dev/coppice/internal/box/oci"
	"github.com/coppice-dev/coppice/internal/box/probe"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/box/relay"
	"github.com/coppice-dev/coppice/internal/plan"
)

func main() { os.Exit(run(os.Args)) }

func run(args []string) int {
	role := ""
	if len(args) > 0 {
		role = args[0]
	}
	switch role {
	case protocol.Argv0:
		return keeper.Main()
	case initlink.Argv0:
		return guest.Main()
	case initlink.ContainerArgv0:
		return oci.Main()
	case plan.ContainedPath:
		return guest.Contained()
	case plan.InnerPath:
		return relay.Inner()
	case probe.Argv0:
		return probe.Child(args[1:])
	}
	fmt.Fprintln(os.Stderr, "coppice-init: the coppice daemon starts this program; see coppice --help")
	return 2
}

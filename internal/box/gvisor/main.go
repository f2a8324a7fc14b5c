//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"

	"github.com/coppice-dev/coppice/internal/box/initlink"
)

// Main is the main function of coppice-sentry: the conductor or, if gVisor starts the program again, one of
// gVisor's own processes. It returns the exit code of the process.
func Main(args []string) int {
	if len(args) > 0 && args[0] == initlink.ConductorArgv0 {
		return conduct()
	}
	return runsc()
}

// gcPercent is GOGC of gVisor's processes. It costs at most 16 MiB in an idle one.
const gcPercent = 400

// runsc runs one of gVisor's processes. It returns the exit code of the process.
func runsc() int {
	debug.SetGCPercent(gcPercent)
	// Only the subcommands can be called, since gVisor is imported as a command.
	commands := map[util.SubCommand]string{}
	for _, c := range []util.SubCommand{new(sentrycmd.Boot), new(cmd.Gofer), new(sentrycmd.Umount)} {
		commands[c] = "internal"
	}
	calls := newCalls()
	if err := calls.install(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-gvisor: answer system calls:", err)
		return 1
	}
	registerSinks(calls)
	cli.Run(nil, commands, []subcommands.Command{})
	return 0
}

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

// gcPercent is GOGC of gVisor's processes: at most 16 MiB of an idle one.
const gcPercent = 400

// runsc is one of gVisor's processes. It returns the exit code of the process.
func runsc() int {
	debug.SetGCPercent(gcPercent)
	// gVisor is imported as a command, so only its subcommands can be called.
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

package spare

import "os" // and nothing else: it would be initialised first, and much of gVisor's with it

// role is what a process of the binary is, as a bit of a mask.
type role uint8

const (
	program   role = 1 << iota // a command, the daemon, a test
	keeper                     // package box
	gate                       // package gate/process
	initial                    // init of a sandbox: package box/inner
	kernel                     // the conductor, and gVisor's own: package box/gvisor
	roleCount = iota
)

// The names that processes are started by; importing what has them would take time.
const (
	conductorArgv0 = "coppice-gvisor"    // guest.ConductorArgv0
	keeperArgv0    = "coppice-keeper"    // of package box
	gateArgv0      = "coppice-gate"      // control.Argv0
	initArgv0      = "coppice-init"      // guest.Argv0
	innerArgv0     = "/run/coppice-init" // plan.InnerPath
	kernelPrefix   = "runsc-"            // of package gvisor.dev/gvisor/runsc/sandbox
	umountArgv0    = "/proc/self/exe"    // of package gvisor.dev/gvisor/runsc/cmd/sandboxsetup
)

// IsConductor reports whether a process that was started with args is a conductor.
func IsConductor(args []string) bool { return len(args) > 0 && args[0] == conductorArgv0 }

// IsKernel reports whether a process that was started with args is one that gVisor starts.
func IsKernel(args []string) bool {
	return len(args) > 0 && len(args[0]) > len(kernelPrefix) && args[0][:len(kernelPrefix)] == kernelPrefix ||
		len(args) > 1 && args[0] == umountArgv0 && args[1] == "umount"
}

// roleOf gives the role of a process that was started with args.
func roleOf(args []string) role {
	switch {
	case IsConductor(args) || IsKernel(args):
		return kernel
	case len(args) == 0:
		return program
	}
	switch args[0] {
	case keeperArgv0:
		return keeper
	case gateArgv0:
		return gate
	case initArgv0, innerArgv0:
		return initial
	}
	return program
}

// init must come before what it marks, so it can be left to nobody. It does nothing else.
func init() {
	umount(os.Args)
	r := roleOf(os.Args)
	for _, t := range tasks() {
		if t.who&r == 0 && *t.state == notBegun {
			*t.state = done
		}
	}
}

// task is the initialisation of a package.
type task struct {
	state *uint32
	who   role // those that use the package
}

// The first word of a package's initTask.
const (
	notBegun = 0
	done     = 2
)

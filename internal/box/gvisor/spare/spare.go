package spare

import "os" // and nothing else: it would be initialised first, and much of gVisor's with it

// conductorArgv0 is guest.ConductorArgv0; importing that would take time.
const conductorArgv0 = "coppice-gvisor"

// IsConductor reports whether a process that was started with args is a conductor.
func IsConductor(args []string) bool { return len(args) > 0 && args[0] == conductorArgv0 }

// IsKernel reports whether a process that was started with args is one that gVisor starts.
func IsKernel(args []string) bool {
	const prefix = "runsc-"
	return len(args) > 0 && len(args[0]) > len(prefix) && args[0][:len(prefix)] == prefix ||
		len(args) > 1 && args[0] == "/proc/self/exe" && args[1] == "umount"
}

// init must come before what it marks, so it can be left to nobody. It does nothing else.
func init() {
	if IsConductor(os.Args) || IsKernel(os.Args) {
		return
	}
	for _, t := range tasks() {
		if *t == notBegun {
			*t = done
		}
	}
}

// The first word of a package's initTask.
const (
	notBegun = 0
	done     = 2
)

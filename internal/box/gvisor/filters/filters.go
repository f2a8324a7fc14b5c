//go:build linux && (amd64 || arm64)

package filters

import (
	"os"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	sentry "gvisor.dev/gvisor/runsc/boot/filter"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"
)

// What gVisor looks into. Its own registration, which makes them anew, is done once.
//
//go:linkname sentryPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var sentryPrograms map[string]precompiledseccomp.Program

//go:linkname goferPrograms gvisor.dev/gvisor/runsc/fsgofer/filter.precompiledPrograms
var goferPrograms map[string]precompiledseccomp.Program

// Register has gVisor use the programs in this process, which is about to be one of its
// own. In a process with another number they are compiled as ever.
func Register() {
	if os.Getpid() != 1 {
		return
	}
	sentry.GetPrecompiled("")
	gofer.GetPrecompiled("")
	for _, p := range sentryReady() {
		sentryPrograms[p.Name] = p
	}
	for _, p := range goferReady() {
		goferPrograms[p.Name] = p
	}
}

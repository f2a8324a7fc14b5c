//go:build linux

package initlink

// What the keeper and the conductor of tier gvisor share besides messages. In that tier the keeper starts the conductor
// in place of init (package gvisor).

// ConductorArgv0 is the argv[0] with which coppice-sentry runs as a conductor.
const ConductorArgv0 = "coppice-gvisor"

// WorldView is the directory of the conductor's root where the keeper finds the sandbox's files,
// without those that only the sandbox's own kernel has.
const WorldView = "/view"

// ImageFiles are the files of a memory image, in the order in which gVisor takes them
// (runsc/sandbox, createSaveFiles): the state of the kernel, the metadata of pages, and the
// pages.
var ImageFiles = [...]string{"checkpoint.img", "pages_meta.img", "pages.img"}

// InMemory returns the directories of the sandbox that are file systems of its own kernel, so
// that the files of the live root at these paths are not visible inside. tmp says that /tmp is
// one.
func InMemory(tmp bool) []string {
	if tmp {
		return []string{"/run", "/tmp"}
	}
	return []string{"/run"}
}

//go:build linux

package initlink

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// What the conductor of tier container and the init that it starts in the container share besides messages (package
// oci). Init is connected to the keeper directly, as in tier process.

// ContainerArgv0 is the argv[0] with which coppice-init runs as the conductor of a container.
const ContainerArgv0 = "coppice-container"

// SetupFD is the descriptor of a second link in the init of a container. The conductor sends the plan through it, and
// then a MsgReady with Outside and one descriptor, the sandbox's root as a detached mount. Init answers with MsgReady.
const SetupFD = FD + 1

// Outside is what the conductor of a container tells the init of it besides the plan. Init compares it with what it
// finds: the runtime is a program of the host, which may not do what it was told.
type Outside struct {
	Weak       []plan.Item       `json:"weak,omitempty"` // protections that are already weaker than planned
	Namespaces map[string]uint64 `json:"namespaces"`     // inodes of the conductor's, by their names in /proc/self/ns
	Caps       uint64            `json:"caps"`           // the capabilities that init is to have, as bits
}

// OwnNamespaces are the namespaces that a runtime makes for a container, by their names in /proc/self/ns.
// KeptNamespaces are those of the conductor that it keeps.
var (
	OwnNamespaces  = []string{"pid", "ipc", "uts", "mnt"}
	KeptNamespaces = []string{"user", "net"}
)

// NamespacesOf returns the inodes of the namespaces of this process, by their names in /proc/self/ns. /proc must be
// that of the process's pid namespace.
func NamespacesOf() (map[string]uint64, error) {
	all := map[string]uint64{}
	for _, ns := range slices.Concat(OwnNamespaces, KeptNamespaces) {
		var st unix.Stat_t
		if err := unix.Stat("/proc/self/ns/"+ns, &st); err != nil {
			return nil, fault.Wrap(err, "find the %s namespace", ns)
		}
		all[ns] = st.Ino
	}
	return all, nil
}

//go:build linux

package initlink

// What the conductor of tier container and the init that it starts in the container share besides messages (package
// oci). Init is connected to the keeper directly, as in tier process.

// ContainerArgv0 is the argv[0] with which coppice-init runs as the conductor of a container.
const ContainerArgv0 = "coppice-container"

// SetupFD is the descriptor of a second link in the init of a container. The conductor sends the plan through it, and
// then a Ready with the protections that are already weaker than planned. Init answers with MsgReady.
const SetupFD = FD + 1

// Package oci is the conductor of tier container: the process, one for each sandbox, that has an OCI runtime of the
// host (runc, crun) start PID 1 of the sandbox. The keeper starts it in place of init, in the same namespaces.
//
// It makes the sandbox's root as init does in tier process (guest.MakeRoot), and then a root of its own, with that root
// in it, the runtime, and the host's system directories, read-only: runtimes need shared libraries. It writes a bundle,
// and runs "RUNTIME run --detach". The runtime makes the container's pid, ipc, uts and mount namespaces, mounts a new
// /proc, drops capabilities, installs its seccomp profile, and executes coppice-init. The network namespace, with the
// gate's link, and the control group, and the user namespace are those that the keeper has made.
//
// The runtime is trusted with the sandbox's files, but not with the walls. It starts the container in an almost empty
// root, so that nothing that a sandbox has made is resolved or read by it, and no mount of the sandbox's root depends
// on it. Init then closes what the runtime has left open, compares the container with the bundle, and enters the
// sandbox's root, which the conductor sends it (guest.Contained): a runtime that omits something is refused.
//
// PID 1 inherits two descriptors from the runtime (--preserve-fds): its end of the keeper's link, and one of the
// conductor's, from which it gets its plan and the root. So nothing is relayed afterwards: commands, terminals,
// records of programs and refusals are those of tier supervised. The conductor only waits until the container ends. As
// PID 1 of a pid namespace that includes the container, its own end is the end of everything in it.
//
// The program coppice-init consists of this package among others. It imports guest, initlink, mounts, seccomp, plan
// and fault.
package oci

// Package notify answers the system calls about which package seccomp's notifying filter notifies its listener. It runs
// in PID 1 of a sandbox, which is in the callers' pid, mount and user namespaces, has every capability in the user
// namespace, and cannot be traced by the callers.
//
// It does five things.
//
// Promotion. overlayfs without redirect_dir (which userxattr forbids) returns EXDEV for the rename of a directory that
// exists in a lower layer (Documentation/filesystems/overlayfs.rst, "Renaming directories"). Before the kernel carries
// out such a rename, the directory is replaced, in its old place, by one that exists only in the upper layer. The
// kernel then renames it with the caller's own credentials. promote.go describes the steps and the result of a kill at
// each of them.
//
// Root emulation. If only one uid is mapped, chown and related calls cannot work. The requested owner is
// stored in the xattr OwnerXattr (directories and regular files; symbolic links and special files cannot
// carry one), a device node becomes an empty file with DeviceXattr, and security labels, file capabilities
// and ACLs are set where the kernel permits it, and otherwise reported as set.
//
// Programs. Each execve (seccomp.NotifyOptions.Trace) is reported when it is requested and again when the program has
// begun; see execute.go.
//
// Internet. Callers that have no sockets of the Internet get Unix sockets for them, which are connected here to an
// entrance outside or to the sandbox's own ports; see internet.go. Init lists these ports and connects to them; see
// inward.go.
//
// Refusals. Calls that the filter refuses and that must be reported (seccomp.Options.Report) are refused here: with the
// error that the filter would have returned, and without reading the memory to which arguments point.
//
// The memory of a caller is hostile and may change at any moment: it is copied once, and decisions use the copy. Paths
// are resolved in the caller's root, without following magic links (a link below /proc/1 would be followed with PID 1's
// rights, not the caller's). If the answer is to let the kernel carry out the call (SECCOMP_USER_NOTIF_FLAG_CONTINUE),
// the kernel reads the arguments again and checks the caller's own rights, so a caller that swaps them gains nothing
// (seccomp_unotify(2), "Design goals").
//
// May be imported by box/guest and box/execs; it imports box/seccomp, gate/entrance/ask and fault.
package notify

// Package notify answers the system calls that package seccomp's notifying
// filter hands over. It runs in PID 1 of a sandbox, which is in the callers' pid,
// mount and user namespaces, has every capability in the latter, and cannot be
// traced by them.
//
// It does four things.
//
// Promotion. overlayfs without redirect_dir (which userxattr forbids) answers
// EXDEV to the rename of a directory that a lower layer has
// (Documentation/filesystems/overlayfs.rst, "Renaming directories"). Before the
// kernel carries such a rename out, the directory is made one that only the
// upper layer has, in its old place; then the kernel renames it, with the
// caller's own credentials. See promote.go for the steps and for what a kill at
// any of them leaves.
//
// Root emulation. Where one uid is mapped, chown and its kin cannot work. The
// owner that was asked for is remembered in the xattr OwnerXattr (directories
// and regular files; symbolic links and special files cannot carry one), a
// device node becomes an empty file that carries DeviceXattr, and security
// labels, file capabilities and ACLs are set where the kernel lets them and
// otherwise said to be set.
//
// Programs. What is executed (seccomp.NotifyOptions.Trace) is told when it is asked for,
// and when it has begun; see execute.go.
//
// Refusals. What the filter refuses and somebody is to be told of (seccomp.Options.Told), it
// refuses: with the error that the filter would have answered, and without a look at what
// arguments point to.
//
// What a caller points to is hostile and may change at any moment: it is copied
// once and judged on the copy. Paths are resolved in the caller's root, without
// following magic links (a link below /proc/1 would be followed with PID 1's
// rights, not the caller's). Where the answer is "let the kernel do it"
// (SECCOMP_USER_NOTIF_FLAG_CONTINUE) the kernel reads the arguments again and
// judges by the caller's own rights, so a caller that swaps them wins nothing
// (seccomp_unotify(2), "Design goals").
//
// May be imported by box/guest and box/execs; it imports box/seccomp and fault.
package notify

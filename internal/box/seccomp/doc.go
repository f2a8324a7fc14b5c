// Package seccomp holds the two system call filters of a sandbox, as data, and
// the little that turns them into classic BPF and installs them.
//
// Hardening takes kernel attack surface and every way out of the namespaces
// away; it answers by itself. Notifying hands a few calls (rename, for root
// emulation chown and its kin, and execve) to a listener, which package notify serves. A
// process carries both; where they disagree the kernel takes the stricter
// answer (kill, then errno, then notify, then allow: seccomp(2)). Inner has what the kernel of
// tier gvisor answers by itself.
//
// A filter sees the call's number, the architecture and the six argument words,
// never what they point to. Calls whose answer does not depend on an argument
// cost nothing: the kernel (5.11 and later) runs the filter once for each number
// when it is installed and remembers which are always allowed. So the programs
// use only what that cache can evaluate before they read an argument
// (kernel/seccomp.c, seccomp_is_const_allow).
//
// May be imported by box/guest, box/gvisor and box/notify; it imports none of ours.
package seccomp

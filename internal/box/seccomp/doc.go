// Package seccomp holds the two system call filters of a sandbox, as data, and the code that compiles them to
// classic BPF and installs them.
//
// Hardening removes kernel attack surface and every way out of the namespaces, without a listener. Notifying
// hands a few calls (rename, for root emulation chown and related calls, and execve) to a listener, which
// package notify serves. A process has both; if they disagree, the kernel applies the stricter result (kill,
// then errno, then notify, then allow: seccomp(2)). Inner holds the rules that the kernel of tier gvisor
// applies itself.
//
// A filter sees the call's number, the architecture and the six argument words, never the memory they point
// to. Calls whose result does not depend on an argument cost nothing: the kernel (5.11 and later) runs the
// filter once for each number when it is installed and caches which are always allowed. So the programs use
// only instructions that this cache can evaluate before they read an argument (kernel/seccomp.c,
// seccomp_is_const_allow).
//
// May be imported by box/guest, box/gvisor and box/notify; it imports no package of Coppice.
package seccomp

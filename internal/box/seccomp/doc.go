// Package seccomp contains the two system call filters of a sandbox as data, and the code that compiles them to classic
// BPF and installs them.
//
// Hardening removes kernel attack surface and every way out of the namespaces, without a listener. Notifying passes a
// few calls (rename, for root emulation chown and related calls, and execve) to a listener, which package notify
// serves. A process has both; if they disagree, the kernel applies the stricter result (kill, then errno, then notify,
// then allow: seccomp(2)). Inner contains the rules that the kernel of tier gvisor applies itself.
//
// A filter sees the call's number, the architecture and the six argument words, but never the memory to which they
// point. Calls whose result does not depend on an argument cost nothing: when a filter is installed, the kernel (5.11
// and later) runs it once for each number and caches which calls are always allowed. So the programs use only
// instructions that the kernel can evaluate for this cache before they read an argument (kernel/seccomp.c,
// seccomp_is_const_allow).
//
// May be imported by box/guest, box/gvisor and box/notify; it imports no package of Coppice.
package seccomp

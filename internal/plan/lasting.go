package plan

import "slices"

// The names of protections that Decide plans without an item; see Enforced.Quiet.
const (
	ownProc   = "proc"    // the sandbox's own procfs
	toldCalls = "denials" // refused system calls are reported
)

// lasting lists the protections that depend on the host alone, and what each needs of it. A policy may turn other
// protections off, such as the network's, so their absence says nothing about the host. Decoys are not listed: a box
// does not start if one cannot be watched.
var lasting = []struct{ name, needs string }{
	{ShiftedIDs, "a kernel and a file system with id-mapped mounts, for a daemon of real root"},
	{Counts, "user namespaces with separate ids on the host"},
	{"gate", "Landlock (Linux 5.13)"},
	{"landlock", "Landlock with scopes (Linux 6.12)"},
	{"memory", "a control group with the memory controller"},
	{"cpus", "a control group with the cpu controller"},
	{"pids", "a control group with the pids controller"},
	{"freeze", "a control group of version 2"},
	{ownProc, "an unmasked /proc"},
	{toldCalls, "a seccomp(2) listener not taken by an outer container"},
	{"programs", "an unmasked /proc"},
}

// byKernel are the protections that tier gvisor gets from the sandbox's own kernel, and the other tiers from the host.
// That one of the kernels provides a protection says nothing about the other.
var byKernel = []string{"pids", "freeze", ownProc, toldCalls, "programs"}

// Protections returns the names of the lasting protections that are on. Later starts of the sandbox require
// them.
func (e Enforced) Protections() (names []string) {
	for _, p := range lasting {
		if e.holds(p.name) {
			names = append(names, p.name)
		}
	}
	return names
}

// holds reports whether a protection is fully in force.
func (e Enforced) holds(name string) bool {
	s := e.State(name)
	return s == On || s == "" && slices.Contains(e.Quiet, name)
}

// Lost returns the names in require that are weak or off. A name that is not in e was not requested.
func (e Enforced) Lost(require []string) (names []string) {
	for _, name := range require {
		if name == "programs" && e.Tier == TierGvisor {
			continue // gVisor always can, so a policy has turned it off
		}
		if s := e.State(name); s == Weak || s == Off {
			names = append(names, name)
		}
	}
	return names
}

// Needs returns what the host must provide for the named lasting protections.
func Needs(names []string) (needs []string) {
	for _, p := range lasting {
		if slices.Contains(names, p.name) && !slices.Contains(needs, p.needs) {
			needs = append(needs, p.needs)
		}
	}
	return needs
}

// Inherited returns those of require that a fork also requires. If the fork has another tier, the protections
// that the tiers provide differently are left out.
func Inherited(require []string, from, to string) []string {
	if (from == TierGvisor) == (to == TierGvisor) {
		return slices.Clone(require)
	}
	return slices.DeleteFunc(slices.Clone(require), func(name string) bool { return slices.Contains(byKernel, name) })
}

package plan

import "slices"

// The names of protections that Decide plans without an item; see Enforced.Quiet.
const (
	ownProc   = "proc"    // a procfs of the sandbox's own
	toldCalls = "denials" // refused system calls are told of
)

// lasting are the protections that the host alone decides about, and what it has to give
// for each. A policy may turn others off, such as the network's, so that their absence says
// nothing of the host. Decoys are not among them: where one cannot be watched, nothing starts.
var lasting = []struct{ name, needs string }{
	{ShiftedIDs, "a kernel and a file system with id-mapped mounts, for a daemon of real root"},
	{Counts, "user namespaces whose ids are nobody's on the host"},
	{"gate", "Landlock (Linux 5.13)"},
	{"landlock", "Landlock with scopes (Linux 6.12)"},
	{"memory", "a control group with the memory controller"},
	{"cpus", "a control group with the cpu controller"},
	{"pids", "a control group with the pids controller"},
	{"freeze", "a control group of version 2"},
	{ownProc, "a /proc of which nothing is masked"},
	{toldCalls, "that nothing around the daemon listens to seccomp(2)"},
	{"programs", "a /proc of which nothing is masked"},
}

// byKernel are those that tier gvisor gives by the sandbox's own kernel, and the others by
// the host: that the one has it says nothing of the other.
var byKernel = []string{"pids", "freeze", ownProc, toldCalls, "programs"}

// Protections names those that hold, which later starts of the sandbox must have as well.
func (e Enforced) Protections() (names []string) {
	for _, p := range lasting {
		if e.holds(p.name) {
			names = append(names, p.name)
		}
	}
	return names
}

// holds reports whether a protection is put up in full.
func (e Enforced) holds(name string) bool {
	s := e.State(name)
	return s == On || s == "" && slices.Contains(e.Quiet, name)
}

// Lost names those of require that are put up with less than they should have, or not at
// all. What is not in e was not asked for.
func (e Enforced) Lost(require []string) (names []string) {
	for _, name := range require {
		if name == "programs" && e.Tier == TierGvisor {
			continue // its kernel always can, so that a policy has turned it off
		}
		if s := e.State(name); s == Weak || s == Off {
			names = append(names, name)
		}
	}
	return names
}

// Needs says what the host has to give for lasting protections.
func Needs(names []string) (needs []string) {
	for _, p := range lasting {
		if slices.Contains(names, p.name) && !slices.Contains(needs, p.needs) {
			needs = append(needs, p.needs)
		}
	}
	return needs
}

// Inherited gives those of require that hold for a fork as well, which may be of another
// tier: all but what that tier does in another way.
func Inherited(require []string, from, to string) []string {
	if (from == TierGvisor) == (to == TierGvisor) {
		return slices.Clone(require)
	}
	return slices.DeleteFunc(slices.Clone(require), func(name string) bool { return slices.Contains(byKernel, name) })
}

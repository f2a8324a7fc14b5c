package plan

import (
	"cmp"
	"slices"
	"strings"
)

// ShiftedIDs is the protection that id-mapped mounts give. Whether they can be made depends on
// the types of the file systems that a root stands on, so each type has a finding of its own.
const ShiftedIDs = "user"

// Finding is what a start found out about its host: that it gives a lasting protection, or
// that it lacks what the protection needs. A home keeps the findings of its starts, and each
// start gets them: what the host has given once, it has to give to every later start of the
// home. So a start decides to do without a protection only while no start of the home had it.
type Finding struct {
	Protection string `json:"protection"`      // see Enforced.Protections
	On         string `json:"on,omitempty"`    // the type of the file system it is about; only for ShiftedIDs
	Lacks      string `json:"lacks,omitempty"` // what the host answered; "" says that it gives the protection
	Kernel     string `json:"kernel"`          // the release of the kernel that answered
}

// Name names what f is about, for people.
func (f Finding) Name() string {
	if f.On == "" {
		return f.Protection
	}
	return f.Protection + " on " + f.On
}

// FindingOf gives what known has on a protection, and on a type of file system.
func FindingOf(known []Finding, protection, on string) (f Finding, ok bool) {
	i := slices.IndexFunc(known, func(f Finding) bool { return f.Protection == protection && f.On == on })
	if i < 0 {
		return f, false
	}
	return known[i], true
}

// Findings gives what e tells of a host with facts f: of all lasting protections that the box
// was asked for, but for ShiftedIDs, which are found one file system at a time.
func (e Enforced) Findings(f Facts) (found []Finding) {
	if e.Tier == TierWorkspace {
		return nil // chosen by name to have none of them
	}
	for _, p := range lasting {
		switch {
		case p.name == ShiftedIDs:
		case p.name == Counts && e.State(ShiftedIDs) == Weak: // whose ids they count is a matter of ShiftedIDs
		case e.Tier == TierGvisor && slices.Contains(byKernel, p.name): // the host has no part in it
		case p.name == "pids" && e.State(p.name) == On && !f.Cgroup.Pids: // what gives it instead depends on the limit
		case e.holds(p.name):
			found = append(found, Finding{Protection: p.name, Kernel: f.Kernel})
		case e.State(p.name) != "":
			found = append(found, Finding{Protection: p.name, Lacks: cmp.Or(e.item(p.name).Detail, "no reason was given"), Kernel: f.Kernel})
		}
	}
	return found
}

// Missed gives those of found that say that the host lacks what it has given before.
func Missed(known, found []Finding) (missed []Finding) {
	for _, f := range found {
		if k, ok := FindingOf(known, f.Protection, f.On); ok && k.Lacks == "" && f.Lacks != "" {
			missed = append(missed, f)
		}
	}
	return missed
}

// Describe names findings of what a host lacks, with the reasons, and says what it has to give.
func Describe(lacks []Finding) (names, needs string) {
	all, protections := make([]string, len(lacks)), make([]string, len(lacks))
	for i, f := range lacks {
		all[i], protections[i] = f.Name()+" ("+f.Lacks+")", f.Protection
	}
	return strings.Join(all, "; "), strings.Join(Needs(protections), ", and ")
}

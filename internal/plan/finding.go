package plan

import (
	"cmp"
	"slices"
	"strings"
)

// ShiftedIDs is the protection by id-mapped mounts. Whether they can be made depends on the types of the file systems
// that hold a root, so each type has its own finding.
const ShiftedIDs = "user"

// Finding is what a start found out about its host: that the host provides a lasting protection, or lacks what the
// protection needs. A home stores the findings of its starts and passes them to each start: a protection that the host
// has provided once is required of every later start. So a start may lack a protection only if no start of the home has
// had it.
type Finding struct {
	Protection string `json:"protection"`      // see Enforced.Protections
	On         string `json:"on,omitempty"`    // type of file system; only for ShiftedIDs
	Lacks      string `json:"lacks,omitempty"` // the host's answer; "" if it provides the protection
	Kernel     string `json:"kernel"`          // the release of the kernel that answered
}

// Name returns the protection, and the file system if there is one, for messages.
func (f Finding) Name() string {
	if f.On == "" {
		return f.Protection
	}
	return f.Protection + " on " + f.On
}

// FindingOf returns the finding in known about a protection on a type of file system.
func FindingOf(known []Finding, protection, on string) (f Finding, ok bool) {
	i := slices.IndexFunc(known, func(f Finding) bool { return f.Protection == protection && f.On == on })
	if i < 0 {
		return f, false
	}
	return known[i], true
}

// Findings returns what e shows about a host with facts f: a finding for each lasting protection that the box was asked
// for, except ShiftedIDs, which has a finding for each file system.
func (e Enforced) Findings(f Facts) (found []Finding) {
	if e.Tier == TierWorkspace {
		return nil // this tier has no protections
	}
	for _, p := range lasting {
		switch {
		case p.name == ShiftedIDs:
		case p.name == Counts && e.State(ShiftedIDs) == Weak: // depends on ShiftedIDs
		case e.Tier == TierGvisor && slices.Contains(byKernel, p.name): // the sandbox's own kernel provides it
		case p.name == "pids" && e.State(p.name) == On && !f.Cgroup.Pids: // its substitute depends on the limit
		case e.holds(p.name):
			found = append(found, Finding{Protection: p.name, Kernel: f.Kernel})
		case e.State(p.name) != "":
			found = append(found,
				Finding{Protection: p.name, Lacks: cmp.Or(e.item(p.name).Detail, "no reason given"), Kernel: f.Kernel})
		}
	}
	return found
}

// Missed returns the findings in found of a lack where known says that the host has provided the protection.
func Missed(known, found []Finding) (missed []Finding) {
	for _, f := range found {
		if k, ok := FindingOf(known, f.Protection, f.On); ok && k.Lacks == "" && f.Lacks != "" {
			missed = append(missed, f)
		}
	}
	return missed
}

// Describe returns the names of the findings in lacks, with reasons, and what the host needs.
func Describe(lacks []Finding) (names, needs string) {
	all, protections := make([]string, len(lacks)), make([]string, len(lacks))
	for i, f := range lacks {
		all[i], protections[i] = f.Name()+" ("+f.Lacks+")", f.Protection
	}
	return strings.Join(all, "; "), strings.Join(Needs(protections), ", and ")
}

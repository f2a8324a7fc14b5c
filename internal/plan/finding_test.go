package plan

import (
	"slices"
	"testing"
)

func TestFindings_DependOnlyOnHost(t *testing.T) {
	t.Parallel()
	all := CgroupFacts{Freeze: true, Memory: true, Pids: true, CPU: true}
	full := Facts{Landlock: 7, PidMax: true, Shift: 1 << 30, Cgroup: all, Kernel: "6.1"}
	poor := Facts{Kernel: "6.1"}
	limits := Limits{Memory: 1 << 30, Pids: 1000}
	for _, tt := range []struct {
		name       string
		config     Config
		facts      Facts
		has, lacks []string
	}{
		{"all", Config{Caller: Caller{Root: true}, Tier: TierProcess, Journal: "/j", Limits: limits}, full,
			[]string{Counts, "landlock", "memory", "pids", "freeze", ownProc, toldCalls}, nil},
		{"unshifted ids, which determine what is counted",
			Config{Caller: Caller{Root: true}, Tier: TierProcess}, poor,
			[]string{ownProc}, []string{"landlock", "freeze"}},
		{"no limits requested", Config{Tier: TierProcess, Caller: Caller{UID: 7}}, Facts{Landlock: 5, Cgroup: all},
			[]string{Counts, "freeze", ownProc}, []string{"landlock"}},
		{"tasks limited by pid_max",
			Config{Tier: TierProcess, Caller: Caller{UID: 7}, Limits: limits}, Facts{PidMax: true, Landlock: 7},
			[]string{Counts, "landlock", ownProc}, []string{"memory", "freeze"}},
		{"no pids controller", Config{Tier: TierProcess, Caller: Caller{UID: 7}, Limits: Limits{Pids: 10}},
			Facts{PidMax: true, Landlock: 7, Cgroup: CgroupFacts{Freeze: true}},
			[]string{Counts, "landlock", "freeze", ownProc}, []string{"pids"}},
		{"own kernel",
			Config{Tier: TierGvisor, Caller: Caller{UID: 7}, Phases: []Phase{{}}, Journal: "/j", Limits: Limits{Pids: 10}}, poor,
			nil, []string{"gate"}},
		{"no confinement", Config{Tier: TierWorkspace, Trace: true}, full, nil, nil},
	} {
		_, e, err := Decide(tt.config, tt.facts)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		var has, lacks []string
		for _, f := range e.Findings(tt.facts) {
			if f.Kernel != tt.facts.Kernel || f.On != "" {
				t.Errorf("%s: %+v", tt.name, f)
			}
			if f.Lacks == "" {
				has = append(has, f.Protection)
			} else {
				lacks = append(lacks, f.Protection)
			}
		}
		if !slices.Equal(has, tt.has) || !slices.Equal(lacks, tt.lacks) {
			t.Errorf("%s: has %q, lacks %q", tt.name, has, lacks)
		}
	}
}

func TestFindings_GiveReasonForEachLack(t *testing.T) {
	t.Parallel()
	e := Enforced{Tier: TierProcess, Quiet: []string{ownProc},
		Items: []Item{{Name: ownProc, State: Weak}, {Name: toldCalls, State: Off}}}
	found := e.Findings(Facts{})
	if len(found) != 2 || found[0].Lacks == "" || found[1].Lacks == "" {
		t.Errorf("%+v", found)
	}
}

func TestMissed_ListsProtectionsProvidedBefore(t *testing.T) {
	t.Parallel()
	known := []Finding{{Protection: "freeze"}, {Protection: ShiftedIDs, On: "ext4"},
		{Protection: "memory", Lacks: "no controller"}}
	found := []Finding{
		{Protection: "freeze", Lacks: "no control group"},
		{Protection: ShiftedIDs, On: "nfs4", Lacks: "invalid argument"}, // another file system
		{Protection: "memory", Lacks: "no controller"},                  // lacked it before
		{Protection: "landlock", Lacks: "Linux 5.10"},                   // unknown before
		{Protection: ShiftedIDs, On: "ext4"},
	}
	missed := Missed(known, found)
	if len(missed) != 1 || missed[0].Protection != "freeze" {
		t.Errorf("%+v", missed)
	}
	names, needs := Describe([]Finding{found[0], found[1]})
	if want := "freeze (no control group); user on nfs4 (invalid argument)"; names != want {
		t.Errorf("%s, not %s", names, want)
	}
	if want := "a kernel and a file system with id-mapped mounts, for a daemon of real root, and a control group of " +
		"version 2"; needs != want {
		t.Errorf("%s, not %s", needs, want)
	}
}

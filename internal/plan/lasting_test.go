package plan

import (
	"slices"
	"testing"
)

func TestProtections_DependOnlyOnHost(t *testing.T) {
	t.Parallel()
	full := Facts{Landlock: 7, PidMax: true, Shift: 1 << 30,
		Cgroup: CgroupFacts{Freeze: true, Memory: true, Pids: true, CPU: true}}
	c := Config{Caller: Caller{Root: true}, Tier: TierProcess, Journal: "/j", Trace: true,
		Limits: Limits{Memory: 1 << 30, Pids: 10, MilliCPUs: 10}}
	_, e, err := Decide(c, full)
	if err != nil {
		t.Fatal(err)
	}
	all := []string{"user", Counts, "landlock", "memory", "cpus", "pids", "freeze", "proc", "denials", "programs"}
	if got := e.Protections(); !slices.Equal(got, all) {
		t.Errorf("%q, not %q", got, all)
	}
	if lost := e.Lost(all); len(lost) > 0 {
		t.Errorf("a start with all protections lost %q", lost)
	}
	for _, name := range []string{"proc", "denials", "programs", "freeze"} { // as init reports
		weak := e
		weak.Items = slices.DeleteFunc(slices.Clone(e.Items), func(i Item) bool { return i.Name == name })
		weak.Items = append(weak.Items, Item{Name: name, State: Off})
		if lost := weak.Lost(all); !slices.Equal(lost, []string{name}) || slices.Contains(weak.Protections(), name) ||
			len(Needs(lost)) != 1 {
			t.Errorf("without %s: lost %q, needs %q", name, lost, Needs(lost))
		}
	}
	c.Journal, c.Trace, c.Limits = "", false, Limits{}
	if _, less, err := Decide(c, full); err != nil || len(less.Lost(all)) > 0 {
		t.Errorf("a protection that the policy does not request counts as lost: %q, %v", less.Lost(all), err)
	}
}

func TestInherited_DropsTierSpecificProtections(t *testing.T) {
	t.Parallel()
	all := []string{"user", "memory", "pids", "freeze", "proc"}
	for _, tt := range []struct {
		from, to string
		want     []string
	}{
		{TierProcess, TierProcess, all},
		{TierProcess, TierSupervised, all},
		{TierGvisor, TierGvisor, all},
		{TierSupervised, TierGvisor, []string{"user", "memory"}},
		{TierGvisor, TierProcess, []string{"user", "memory"}},
	} {
		if got := Inherited(all, tt.from, tt.to); !slices.Equal(got, tt.want) {
			t.Errorf("from %s to %s: %q", tt.from, tt.to, got)
		}
	}
}

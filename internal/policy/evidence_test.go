package policy

import (
	"slices"
	"strings"
	"testing"
)

// evidenceOf merges the evidence sections of the owner and of a project.
func evidenceOf(t *testing.T, tier, user, project string) (Policy, error) {
	t.Helper()
	var layers []Layer
	for level, text := range map[Level]string{User: user, Project: project, Flags: ""} {
		if text == "" {
			continue
		}
		d, err := Parse("/w/"+string('a'+rune(level))+".yaml", []byte("version: 1\n"+tier+"evidence: "+text+"\n"))
		if err != nil {
			t.Fatal(told(err))
		}
		layers = append(layers, Layer{level, d})
	}
	return Merge(layers...)
}

func TestEvidence_ProjectOnlyExtends(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		user, project     string
		output            int64
		entropy           bool
		programs          Programs
		redacted, ignored int
	}{
		{"", "", DefaultOutput, false, ProgramsAll, 0, 0},
		{"{output: none}", "{output: 1KiB}", 1 << 10, false, ProgramsAll, 0, 0},
		{"{output: 2KiB, entropy: true, redact: [a]}", "{output: none, entropy: false, programs: summary, redact: [b, a]}",
			2 << 10, true, ProgramsAll, 2, 3},
		{"", "{output: none}", DefaultOutput, false, ProgramsAll, 0, 1},
		{"{programs: none}", "{programs: summary}", DefaultOutput, false, ProgramsSummary, 0, 0},
	} {
		p, err := evidenceOf(t, "", c.user, c.project)
		if err != nil {
			t.Fatal(err)
		}
		v := p.Evidence
		if v.Output.Value != c.output || v.Entropy.Value != c.entropy || v.Programs.Value != c.programs ||
			len(v.Redact) != c.redacted || len(p.Notes) != c.ignored {
			t.Errorf("%s and %s: %+v, %v", c.user, c.project, v, p.Notes)
		}
		text, err := p.Canonical()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseCanonical(text)
		if err != nil || again.Evidence.Output.Value != c.output || len(again.Evidence.Redact) != c.redacted ||
			again.Evidence.Programs.Value != c.programs {
			t.Errorf("%s: %+v, %v", text, again.Evidence, err)
		}
		if said := strings.Contains(string(text), "evidence"); said != (v.document() != nil) ||
			said == (c.user == "" && c.output == DefaultOutput) {
			t.Errorf("%s contains a default, or lacks a setting", text)
		}
	}
}

func TestEvidence_ProjectCannotTurnDenialsOff(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		user, project string
		want          FileDenials
		ignored       int
	}{
		{"", "", FileDenialsAuto, 0},
		{"{denials: none}", "", FileDenialsNone, 0},
		{"", "{denials: none}", FileDenialsAuto, 1},
		{"{denials: none}", "{denials: auto}", FileDenialsAuto, 0},
	} {
		p, err := evidenceOf(t, "", c.user, c.project)
		if err != nil {
			t.Fatal(err)
		}
		text, err := p.Canonical()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseCanonical(text)
		if err != nil || p.Evidence.Denials.Value != c.want || again.Evidence.Denials.Value != c.want ||
			len(p.Notes) != c.ignored || strings.Contains(string(text), "denials") != (c.want == FileDenialsNone) {
			t.Errorf("%s and %s: %+v, %v, %s, %v", c.user, c.project, p.Evidence, p.Notes, text, err)
		}
	}
	d, _ := Merge()
	p, err := evidenceOf(t, "", "{denials: none}", "")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(Diff(d, p), func(c Change) bool { return c.Key == "evidence.denials" && c.Way == Wider }) {
		t.Errorf("%+v", Diff(d, p))
	}
}

func TestEvidence_SupervisedRequiresPrograms(t *testing.T) {
	t.Parallel()
	if _, err := evidenceOf(t, "tier: supervised\n", "{programs: none}", ""); err == nil ||
		!strings.Contains(told(err), "programs: summary") {
		t.Error(err)
	}
	p, err := evidenceOf(t, "tier: supervised\n", "{programs: summary}", "")
	if err != nil {
		t.Fatal(err)
	}
	d, _ := Merge()
	if !slices.ContainsFunc(Diff(d, p), func(c Change) bool { return c.Key == "evidence.programs" && c.Way == Wider }) {
		t.Errorf("%+v", Diff(d, p))
	}
}

package policy

import (
	"strings"
	"testing"
)

// TestConfine_IsNotWeakenedByAProject merges the settings of the levels.
func TestConfine_IsNotWeakenedByAProject(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		user, project, flags string
		want                 Confine
		noted                bool
	}{
		{want: ConfineAuto},
		{user: "off", want: ConfineOff},
		{project: "off", want: ConfineAuto, noted: true},
		{project: "require", want: ConfineRequire},
		{user: "off", project: "auto", want: ConfineAuto},
		{user: "require", project: "auto", want: ConfineRequire, noted: true},
		{project: "require", flags: "off", want: ConfineOff},
	} {
		var all []Layer
		for level, text := range []string{c.user, c.project, c.flags} {
			if text == "" {
				continue
			}
			d, err := Parse("/p/coppice.yaml", []byte("{version: 1, confine: "+text+"}"))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, Layer{Level(level), d})
		}
		p, err := Merge(all...)
		if err != nil || p.Confine.Value != c.want || (len(p.Notes) > 0) != c.noted {
			t.Errorf("%+v: %s, %v, %v", c, p.Confine.Value, p.Notes, err)
		}
		text, err := p.Canonical()
		if err != nil || strings.Contains(string(text), "confine") != (c.want != ConfineAuto) {
			t.Errorf("%+v: %s, %v", c, text, err)
		}
		again, err := ParseCanonical(text)
		if err != nil || again.Confine.Value != c.want {
			t.Errorf("%+v: read again, it is %s: %v", c, again.Confine.Value, err)
		}
	}
	a, b := Policy{Confine: Said[Confine]{Value: ConfineAuto}}, Policy{Confine: Said[Confine]{Value: ConfineOff}}
	if d := Diff(a, b); len(d) != 1 || d[0].Way != Wider {
		t.Errorf("%+v", d)
	}
}

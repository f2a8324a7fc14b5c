package httpapi_test

import (
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client"
)

func TestList_IsFiltered(t *testing.T) {
	t.Parallel()
	c := serve(t, &fake{})
	for _, tc := range []struct {
		filters string
		want    string
	}{
		{"", "a b"},
		{"state=running", "a"},
		{"state=running state=stopped", "a b"},
		{"name=b* state=running", ""},
		{"label=team=web,%&+x", "b"}, // a comma does not separate filters
		{"label=team", "b"},
	} {
		list, err := c.List(t.Context(), strings.Fields(tc.filters)...)
		var names []string
		for _, sb := range list {
			names = append(names, sb.Name)
		}
		if got := strings.Join(names, " "); err != nil || list == nil || got != tc.want {
			t.Errorf("%s: %q, %v, want %q", tc.filters, got, err, tc.want)
		}
	}
	for filters, want := range map[string]string{
		"colour=red":           `unknown filter key "colour": must be label, name, state, tier, driver or origin`,
		"state=running tier=x": `unknown tier "x"`,
		"\x1b[2J":              `unknown filter key "\x1b[2J"`,
	} {
		_, err := c.List(t.Context(), strings.Fields(filters)...)
		if !client.IsKind(err, client.KindInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", filters, err, want)
		}
	}
}

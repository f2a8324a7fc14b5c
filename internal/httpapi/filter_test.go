package httpapi_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/httpapi"
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

// TestList_RefusesFiltersThatWouldNotApply checks that a query from which no filter can be read never lists all
// sandboxes: a client may remove what it lists.
func TestList_RefusesFiltersThatWouldNotApply(t *testing.T) {
	t.Parallel()
	h := owned(httpapi.Options{Roles: roles(&fake{})})
	for query, valid := range map[string]bool{
		"":                               true,
		"?filter=state%3Drunning":        true,
		"?filter=":                       false,
		"?filter=state%3Drunning&filter": false,
		"?filters=state%3Drunning":       false,
		"?Filter=state%3Drunning":        false,
		"?filter[]=state%3Drunning":      false,
		"?filter=%zz":                    false,
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/v1/sandboxes"+query, nil))
		refused := w.Code >= 400 && strings.Contains(w.Body.String(), `"kind":"invalid"`)
		if valid != (w.Code == 200) || valid == refused {
			t.Errorf("%q: %d %s", query, w.Code, w.Body)
		}
	}
}

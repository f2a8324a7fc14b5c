package auth_test

import (
	"context"
	"testing"

	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

func TestPrincipal_ChecksScopeAndSandboxes(t *testing.T) {
	t.Parallel()
	limited := auth.Principal{TokenID: "1", Scope: auth.Operate, Sandboxes: []string{"a"}}
	none := auth.Principal{TokenID: "1", Scope: auth.Admin, Sandboxes: []string{}}
	for _, tc := range []struct {
		name string
		p    auth.Principal
		need auth.Scope
		id   string
		want fault.Kind // "": allowed
	}{
		{"nobody", auth.Principal{}, auth.Read, "a", fault.Denied},
		{"an unknown scope", auth.Principal{Scope: 9}, auth.Read, "a", fault.Denied},
		{"an unknown need", auth.Owner(), 9, "a", fault.Denied},
		{"the owner", auth.Owner(), auth.Admin, "", ""},
		{"less than is needed", auth.Principal{Scope: auth.Read}, auth.Operate, "a", fault.Denied},
		{"more than is needed", auth.Principal{Scope: auth.Admin}, auth.Read, "", ""},
		{"its own", limited, auth.Operate, "a", ""},
		{"its own, but more", limited, auth.Admin, "a", fault.Denied},
		{"another one", limited, auth.Read, "b", fault.NotFound},
		{"all", limited, auth.Read, "", fault.Denied},
		{"none at all", none, auth.Read, "a", fault.NotFound},
	} {
		if err := tc.p.Check(tc.need, tc.id); tc.want == "" && err != nil || tc.want != "" && !fault.Is(err, tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
	if p := auth.From(context.Background()); p.Check(auth.Read, "") == nil {
		t.Error("an empty context has rights")
	}
	if p := auth.From(auth.With(context.Background(), auth.Owner())); p.Check(auth.Admin, "") != nil {
		t.Error("the context has lost the owner")
	}
}

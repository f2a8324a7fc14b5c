package meta

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestGrants_AreSealedAndEndWithTheSandbox checks that grants are read back as they were stored, that no file has the
// encrypted parts in clear, and that a removed sandbox leaves nothing.
func TestGrants_AreSealedAndEndWithTheSandbox(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "meta.db")
	d := must(Open(t.Context(), path))(t)
	a, b := box(t, d, "a", ""), box(t, d, "b", "")
	when := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	one := Grant{Sandbox: a.ID, Name: "github", Secret: "pat", State: "live", Until: when, Used: 2, GrantBody: GrantBody{
		Item: []byte(`{"hosts":["conspicuous.example"]}`), Kind: "github", Placeholder: "conspicuous-text",
		Aliases: []string{"c"}, Epoch: 1, Given: when, LastUsed: when, Counted: []byte(`{}`)}}
	two := Grant{Sandbox: a.ID, Name: "bare", Secret: "x", State: "revoked", GrantBody: GrantBody{Item: []byte(`{}`),
		Given: when, Why: "w"}}
	other := Grant{Sandbox: b.ID, Name: "github", Secret: "y", State: "live", GrantBody: GrantBody{Item: []byte(`{}`),
		Given: when}}
	for _, g := range []Grant{one, two, other} {
		ok(t, d.PutGrant(t.Context(), g))
	}
	if got := must(d.Grants(t.Context(), a.ID))(t); !reflect.DeepEqual(got, []Grant{two, one}) {
		t.Errorf("%+v", got)
	}
	if got := must(d.GrantsIn(t.Context(), "live"))(t); len(got) != 2 {
		t.Errorf("%+v", got)
	}
	two.State, two.Why = "live", ""
	ok(t, d.PutGrant(t.Context(), two))
	if got := must(d.Grants(t.Context(), a.ID))(t); !reflect.DeepEqual(got, []Grant{two, one}) {
		t.Errorf("%+v", got)
	}
	ok(t, d.DropGrant(t.Context(), a.ID, "bare"))

	first, second := []byte("conspicuous-ticket-1"), []byte("conspicuous-ticket-2")
	for range 2 {
		if got := must(d.Ticket(t.Context(), a.ID, first))(t); !bytes.Equal(got, []byte("conspicuous-ticket-1")) {
			t.Errorf("%q", got)
		}
		first = second // the stored one stays
	}
	for _, f := range must(filepath.Glob(filepath.Join(filepath.Dir(path), "*")))(t) {
		if strings.Contains(string(must(os.ReadFile(f))(t)), "conspicuous") {
			t.Errorf("%s has a part of a grant in clear", f)
		}
	}
	must(d.DeleteSandbox(t.Context(), a.ID))(t)
	if got := must(d.GrantsIn(t.Context(), "live"))(t); len(got) != 1 || got[0].Sandbox != b.ID {
		t.Errorf("%+v", got)
	}
	if err := d.PutGrant(t.Context(), one); !fault.Is(err, fault.NotFound) {
		t.Errorf("a grant of a removed sandbox: %v", err)
	}
	if _, err := d.Ticket(t.Context(), a.ID, second); !fault.Is(err, fault.NotFound) {
		t.Errorf("a ticket of a removed sandbox: %v", err)
	}
	ok(t, d.Check(t.Context()))
	ok(t, d.Close())
}

package broker

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secret/client"
	"github.com/coppice-dev/coppice/internal/secret/vaulttest"
)

// withVault returns a home whose secret db is a dynamic role of a real PostgreSQL behind a real Vault, and secret kv is
// a static one.
func withVault(t *testing.T, ttl string) (h *testHome, v *vaulttest.Server, roles func() []string) {
	t.Helper()
	v = vaulttest.Start(t)
	role, secret := v.AppRole("1h", "2h")
	roles = v.Postgres(ttl, "1h")
	v.Must("POST", "kv/data/team/a", map[string]any{"data": map[string]any{"token": token}})
	for name, value := range map[string]string{"VAULT_ADDR": v.Address, "VAULT_CACERT": v.CA, "VAULT_ROLE_ID": role,
		"VAULT_SECRET_ID": secret} {
		t.Setenv(name, value)
	}
	h = start(t)
	for name, from := range map[string]string{"db": "vault:database/creds/r#password", "kv": "vault:kv/team/a#token"} {
		if s, err := h.Set(t.Context(), name, from, "", nil); err != nil || s.From != from || s.Length == 0 {
			t.Fatalf("%+v, %v (%s)", s, err, fault.HintOf(err))
		}
	}
	h.clean(secret)
	return h, v, roles
}

// leases returns how many leases are written down.
func (h *testHome) leases() int {
	h.t.Helper()
	names, err := filepath.Glob(filepath.Join(h.dir, "secrets", "broker", keepLease+"*"))
	if err != nil {
		h.t.Fatal(err)
	}
	return len(names)
}

// TestBroker_ReturnsLeases checks that a dynamic secret is created once for a grant, and revoked when the grant ends,
// however that happens.
func TestBroker_ReturnsLeases(t *testing.T) {
	h, _, roles := withVault(t, "10m")
	db := client.Granted{Name: "db", Secret: "db"}
	has := func(n int, when string) {
		t.Helper()
		if got := roles(); len(got) != n || h.leases() != n {
			t.Errorf("%s: roles %q and %d leases, not %d", when, got, h.leases(), n)
		}
	}
	has(0, "when it was only looked at")
	first := h.gate(h.register("first", nil, db, client.Granted{Name: "kv", Secret: "kv"}))
	first.want("kv", token)
	password, err := first.get("db", "a.example")
	if err != nil {
		t.Fatal(err)
	}
	first.want("db", password)
	ticket := h.register("second", nil, db)
	if other, err := h.gate(ticket).get("db", "a.example"); err != nil || other == password {
		t.Errorf("another sandbox has the same password, or %v", err)
	}
	has(2, "of two sandboxes")
	h.clean(password)
	if err := h.Withdraw(t.Context(), "first"); err != nil {
		t.Error(err)
	}
	has(1, "after one was withdrawn")
	h.register("second", ticket)
	has(0, "after the grant was revoked")
	get := func() {
		t.Helper()
		if _, err := h.gate(h.register("second", nil, db)).get("db", "a.example"); err != nil {
			t.Fatalf("%v (%s)", err, fault.HintOf(err))
		}
		has(1, "of a new grant")
	}
	get()
	if _, err := h.Set(t.Context(), "db", "vault:database/creds/r#password", "", nil); err != nil {
		t.Error(err)
	}
	has(0, "after the secret was set again")
	get()
	h.end(unix.SIGTERM)
	has(0, "after the broker has exited")
	h.again()
	get()
	h.end(unix.SIGKILL)
	has(1, "of a killed broker")
	h.again()
	await(t, "the revocation of what the killed broker left", func() bool { return len(roles()) == 0 && h.leases() == 0 })
}

// TestBroker_RenewsLeases checks that a lease does not end while its grant lasts.
func TestBroker_RenewsLeases(t *testing.T) {
	h, v, roles := withVault(t, "30s")
	g := h.gate(h.register("box", nil, client.Granted{Name: "db", Secret: "db"}))
	password, err := g.get("db", "a.example")
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Data struct{ Keys []string }
	}
	if v.Call("LIST", "sys/leases/lookup/database/creds/r", nil, &list); len(list.Data.Keys) != 1 {
		t.Fatalf("%+v", list)
	}
	id := "database/creds/r/" + list.Data.Keys[0]
	await(t, "a renewal", func() bool {
		var lease struct {
			Data struct {
				Last *string `json:"last_renewal"`
			}
		}
		return v.Call("PUT", "sys/leases/lookup", map[string]any{"lease_id": id}, &lease) == 200 && lease.Data.Last != nil
	})
	g.want("db", password)
	if all := roles(); len(all) != 1 {
		t.Errorf("%q", all)
	}
}

// TestBroker_RevokesAtTheEndOfAGrant checks that a lease ends with its grant although no daemon withdraws it.
func TestBroker_RevokesAtTheEndOfAGrant(t *testing.T) {
	h, _, roles := withVault(t, "10m")
	until := time.Now().Add(10 * time.Second)
	g := h.gate(h.register("box", nil, client.Granted{Name: "db", Secret: "db", Until: until}))
	if _, err := g.get("db", "a.example"); time.Now().Before(until) && (err != nil || len(roles()) != 1) {
		t.Errorf("%v, roles %q", err, roles())
	}
	await(t, "the end of the lease", func() bool { return len(roles()) == 0 && h.leases() == 0 })
	if time.Now().Before(until) {
		t.Error("it ended before its grant")
	}
	g.refused("db", "a.example", fault.Denied)
}

// TestBroker_SurvivesVault checks what gates get while the server is away, and that its leases are revoked afterward.
func TestBroker_SurvivesVault(t *testing.T) {
	h, v, roles := withVault(t, "10m")
	g := h.gate(h.register("box", nil, client.Granted{Name: "db", Secret: "db"}, client.Granted{Name: "kv", Secret: "kv"}))
	if _, err := g.get("db", "a.example"); err != nil {
		t.Fatal(err)
	}
	v.Must("PUT", "sys/seal", nil)
	g.refused("kv", "a.example", fault.Unavailable)
	if err := h.Withdraw(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	if h.leases() != 1 {
		t.Errorf("%d leases are written down", h.leases())
	}
	v.Must("PUT", "sys/unseal", map[string]any{"key": v.Unseal})
	h.end(unix.SIGTERM)
	h.again()
	await(t, "the revocation of what could not be revoked", func() bool { return len(roles()) == 0 && h.leases() == 0 })
	if _, err := os.Stat(client.LogPath(h.dir)); err != nil {
		t.Error(err)
	}
}

package store

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestVault_ReadsSecrets(t *testing.T) {
	t.Parallel()
	s := startVault(t)
	s.put("kv/data/team/gh", map[string]any{"data": map[string]any{"token": mark, "username": "alice", "n": 7, "bad": mark + "\n"}})
	s.put("kv/data/team/a%20b%3Fc", map[string]any{"data": map[string]any{"token": mark + "space"}})
	s.put("one/team/gh", map[string]any{"token": mark + "one", "data": mark})
	s.put("kv/data/other", map[string]any{"data": map[string]any{"token": mark}})
	v := s.store(s.approle("1h", "2h"))
	if err := v.Check(t.Context()); err != nil {
		t.Error(err)
	}
	value := mustGet(t, v, "kv/team/gh", "token")
	if value.User != "alice" || !value.Until.IsZero() || value.Lease() != "" {
		t.Errorf("%q %v %q", value.User, value.Until, value.Lease())
	}
	mustBe(t, value, nil, mark)
	mustBe(t, mustGet(t, v, "kv/team/a b?c", "token"), nil, mark+"space")
	mustBe(t, mustGet(t, v, "one/team/gh", "token"), nil, mark+"one")
	mustBe(t, mustGet(t, v, "one/team/gh", "data"), nil, mark)
	s.put("kv/data/team/gh", map[string]any{"data": map[string]any{"token": mark + "2"}})
	mustBe(t, mustGet(t, v, "kv/team/gh", "token"), nil, mark+"2")
	before := v.session.get()
	for ref, want := range map[string]fault.Kind{
		"kv/team/gh#none": fault.NotFound, "kv/team/none#token": fault.NotFound, "kv/other#token": fault.Denied,
		"none/x#token": fault.Denied, "cubbyhole/x#token": fault.NotFound, "sys/x#a": fault.Invalid, "kv/..#a": fault.Invalid,
		"one/team/none#token": fault.NotFound,
	} {
		path, field, _ := strings.Cut(ref, "#")
		_, err := v.Get(t.Context(), Ref{Path: path, Field: field})
		mustFail(t, err, want)
	}
	if v.session.get() != before {
		t.Error("a secret that may not be read costs a login")
	}
	s.put("kv/data/team/gh", map[string]any{"data": map[string]any{"n": 7, "bad": mark + "\n"}})
	for _, field := range []string{"n", "bad"} {
		_, err := v.Get(t.Context(), Ref{Path: "kv/team/gh", Field: field})
		mustFail(t, err, fault.Invalid)
	}
	s.must("DELETE", "kv/data/team/gh", nil)
	_, err := v.Get(t.Context(), Ref{Path: "kv/team/gh", Field: "n"})
	mustFail(t, err, fault.NotFound)
	mustFail(t, v.Put(t.Context(), Ref{}, []byte(mark)), fault.Unsupported)
	mustFail(t, v.Delete(t.Context(), Ref{}), fault.Unsupported)
	mustBe(t, mustGet(t, s.root(), "kv/other", "token"), nil, mark)

	s.must("PUT", "sys/seal", nil)
	_, err = v.Get(t.Context(), Ref{Path: "kv/team/gh", Field: "token"})
	mustFail(t, err, fault.Unavailable)
	if !strings.Contains(fault.HintOf(err), "vault operator unseal") {
		t.Errorf("hint %q", fault.HintOf(err))
	}
	mustFail(t, v.Check(t.Context()), fault.Unavailable)
	s.must("PUT", "sys/unseal", map[string]any{"key": s.Unseal})
	await(t, func() bool { return v.Check(t.Context()) == nil })
}

func TestVault_RefusesWrongCredentials(t *testing.T) {
	t.Parallel()
	s := startVault(t)
	good := s.approle("1h", "2h")
	wrong := good
	wrong.Credential = constant(mark)
	nowhere := good
	nowhere.Mount = "nowhere"
	lost := good
	lost.Credential = func(context.Context) (Value, error) {
		return Value{}, fault.New(fault.Unavailable, "the store is locked")
	}
	for name, c := range map[string]struct {
		auth VaultAuth
		want fault.Kind
	}{
		"secret id": {wrong, fault.Unavailable}, "mount": {nowhere, fault.Denied}, "credential": {lost, fault.Unavailable},
		"token": {VaultAuth{Method: VaultToken, Credential: constant(mark)}, fault.Denied},
	} {
		v := s.store(c.auth)
		err := v.Check(t.Context())
		mustFail(t, err, c.want)
		if fault.HintOf(err) == "" && name != "credential" {
			t.Errorf("%s: no hint", name)
		}
		_, err = v.Get(t.Context(), Ref{Path: "kv/team/x", Field: "x"})
		mustFail(t, err, c.want)
	}
}

// TestVault_ReplacesRevokedToken also renews a token at two thirds of its time, by a clock that the test sets.
func TestVault_ReplacesRevokedToken(t *testing.T) {
	t.Parallel()
	s := startVault(t)
	s.put("kv/data/team/gh", map[string]any{"data": map[string]any{"token": mark}})
	v := s.store(s.approle("10m", "1h"))
	now := time.Now()
	v.now = func() time.Time { return now }
	mustBe(t, mustGet(t, v, "kv/team/gh", "token"), nil, mark)
	first := v.session.get()
	if !first.renewable || first.span.until.Sub(now) != 10*time.Minute || first.span.again.Sub(now) != 400*time.Second {
		t.Errorf("%+v", first.span)
	}
	now = now.Add(399 * time.Second)
	mustBe(t, mustGet(t, v, "kv/team/gh", "token"), nil, mark)
	if v.session.get() != first {
		t.Error("renewed too early")
	}
	now = now.Add(2 * time.Second)
	mustBe(t, mustGet(t, v, "kv/team/gh", "token"), nil, mark)
	if got := v.session.get(); got.text != first.text || !got.span.until.After(first.span.until) {
		t.Error("not renewed at two thirds")
	}
	s.must("POST", "auth/token/revoke", map[string]any{"token": first.text})
	mustBe(t, mustGet(t, v, "kv/team/gh", "token"), nil, mark)
	second := v.session.get()
	if second.text == first.text {
		t.Error("a revoked token is used again")
	}
	now = second.span.until.Add(time.Second) // by this clock, it has ended
	mustBe(t, mustGet(t, v, "kv/team/gh", "token"), nil, mark)
	if v.session.get().text == second.text {
		t.Error("a token that has ended is used again")
	}
}

// TestVault_ReplacesTokenNearItsMaximum has a token whose maximum leaves less than half of its time at its renewal.
func TestVault_ReplacesTokenNearItsMaximum(t *testing.T) {
	t.Parallel()
	s := startVault(t)
	v := s.store(s.approle("10s", "11s"))
	if err := v.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := v.session.get().text
	await(t, func() bool {
		if err := v.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		now := v.session.get()
		if life := 3 * now.span.until.Sub(now.span.again); life < now.full/2-time.Second {
			t.Fatalf("a token of %v is renewed for %v", now.full, life)
		}
		return now.text != first
	})
}

// TestVault_KeepsGivenToken checks the method token: one with an end is renewed, and its end is an error with a hint.
func TestVault_KeepsGivenToken(t *testing.T) {
	t.Parallel()
	s := startVault(t)
	s.policy()
	s.put("kv/data/team/gh", map[string]any{"data": map[string]any{"token": mark}})
	given := s.must("POST", "auth/token/create", map[string]any{"policies": []string{"coppice"}, "ttl": "10m"})["client_token"].(string)
	v := s.store(VaultAuth{Method: VaultToken, Credential: constant(given)})
	mustBe(t, mustGet(t, v, "kv/team/gh", "token"), nil, mark)
	if got := v.session.get(); got.text != given || got.span.until.IsZero() || !got.renewable {
		t.Errorf("%+v", got.span)
	}
	s.must("POST", "auth/token/revoke", map[string]any{"token": given})
	_, err := v.Get(t.Context(), Ref{Path: "kv/team/gh", Field: "token"})
	mustFail(t, err, fault.Denied)
	if !strings.Contains(fault.HintOf(err), "vault login") {
		t.Errorf("hint %q", fault.HintOf(err))
	}
}

func TestVault_LeasesDatabaseRoles(t *testing.T) {
	t.Parallel()
	s := startVault(t)
	roles := s.postgres("10m", "15m")
	v := s.store(s.approle("1h", "2h"))
	before := time.Now()
	value := mustGet(t, v, "database/creds/r", "password")
	if got := roles(); len(got) != 1 || got[0] != value.User {
		t.Errorf("roles %q, user %q", got, value.User)
	}
	life := value.Until.Sub(before)
	if value.Lease() == "" || life < 9*time.Minute || life > 30*time.Minute || value.RenewAt().Sub(before) > 2*life/3+time.Second {
		t.Errorf("lease %q, until %v, renew at %v", value.Lease(), value.Until, value.RenewAt())
	}
	if err := value.Renew(t.Context()); err != nil || value.Until.Before(before.Add(9*time.Minute)) {
		t.Errorf("%v %v", value.Until, err)
	}
	if err := value.Revoke(t.Context()); err != nil || len(roles()) != 0 {
		t.Errorf("roles %q, %v", roles(), err)
	}
	if err := value.Renew(t.Context()); err == nil {
		t.Error("a revoked lease is renewed")
	} else {
		mustHide(t, err)
	}
	if err := value.Revoke(t.Context()); err != nil {
		t.Errorf("the second time: %v", err)
	}
	value.Close()

	// A lease of a value that the caller does not receive is revoked.
	_, err := v.Get(t.Context(), Ref{Path: "database/creds/r", Field: "none"})
	if mustFail(t, err, fault.NotFound); len(roles()) != 0 {
		t.Errorf("roles %q", roles())
	}

	// Another process revokes by the lease's id.
	value = mustGet(t, v, "database/creds/r", "password")
	id := value.Lease()
	value.Close()
	if err := s.root().Revoke(t.Context(), id); err != nil || len(roles()) != 0 {
		t.Errorf("roles %q, %v", roles(), err)
	}
}

// TestVault_LeaseEndsWithItsToken checks that a value expires with a token that ends before its lease, and that its
// lease is not renewed with a later token.
func TestVault_LeaseEndsWithItsToken(t *testing.T) {
	t.Parallel()
	s := startVault(t)
	roles := s.postgres("1h", "2h")
	v := s.store(s.approle("10m", "20m"))
	value := mustGet(t, v, "database/creds/r", "password")
	defer value.Close()
	if until := v.session.get().span.until; !value.Until.Equal(until) {
		t.Errorf("until %v, the token until %v", value.Until, until)
	}
	s.must("POST", "auth/token/revoke", map[string]any{"token": v.session.get().text})
	await(t, func() bool { return len(roles()) == 0 })
	err := value.Renew(t.Context())
	if mustHide(t, err); err == nil {
		t.Error("renewed")
	}
}

// TestVault_KubernetesLogin logs in with a JWT. Vault asks Kubernetes' API whether it is valid: a server of the test
// answers, since no Kubernetes runs here.
func TestVault_KubernetesLogin(t *testing.T) {
	t.Parallel()
	s := startVault(t)
	s.policy()
	s.put("kv/data/team/gh", map[string]any{"data": map[string]any{"token": mark}})
	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	jwt := part(map[string]any{"alg": "RS256", "typ": "JWT"}) + "." + part(map[string]any{
		"iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:coppice", "exp": time.Now().Add(time.Hour).Unix(),
		"iat": time.Now().Add(-time.Hour).Unix(), "nbf": time.Now().Add(-time.Hour).Unix(),
		"kubernetes.io": map[string]any{"namespace": "default", "serviceaccount": map[string]any{"name": "coppice", "uid": "u1"}},
	}) + "." + base64.RawURLEncoding.EncodeToString([]byte(mark))
	reviews := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review map[string]any
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		spec, _ := review["spec"].(map[string]any)
		status := map[string]any{"authenticated": spec["token"] == jwt,
			"user": map[string]any{"username": "system:serviceaccount:default:coppice", "uid": "u1"}}
		if spec["token"] != jwt {
			status = map[string]any{"authenticated": false}
		}
		review["status"] = status
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer reviews.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: reviews.Certificate().Raw})
	s.must("POST", "sys/auth/kubernetes", map[string]any{"type": "kubernetes"})
	s.must("POST", "auth/kubernetes/config", map[string]any{"kubernetes_host": reviews.URL, "kubernetes_ca_cert": string(ca),
		"disable_local_ca_jwt": true, "token_reviewer_jwt": jwt, "disable_iss_validation": true})
	s.must("POST", "auth/kubernetes/role/coppice", map[string]any{"bound_service_account_names": "coppice",
		"bound_service_account_namespaces": "default", "token_policies": "coppice", "token_ttl": "10m"})
	v := s.store(VaultAuth{Method: VaultKubernetes, Role: "coppice", Credential: constant(jwt)})
	mustBe(t, mustGet(t, v, "kv/team/gh", "token"), nil, mark)
	v = s.store(VaultAuth{Method: VaultKubernetes, Role: "other", Credential: constant(jwt)})
	mustFail(t, v.Check(t.Context()), fault.Denied)
	v = s.store(VaultAuth{Method: VaultKubernetes, Role: "coppice", Credential: constant(strings.Replace(jwt, ".", "."+mark, 1))})
	if err := v.Check(t.Context()); err == nil {
		t.Error("a wrong JWT is accepted")
	} else {
		mustHide(t, err)
	}
}

func TestVault_VerifiesCertificate(t *testing.T) {
	t.Parallel()
	s := startVault(t)
	other, _ := certificate(t)
	for _, ca := range []string{"", other} {
		v, err := NewVault(VaultOptions{Address: s.Address, CA: ca, Now: time.Now,
			Auth: VaultAuth{Method: VaultToken, Credential: constant(s.Root)}})
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Check(t.Context()); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "not trusted") {
			t.Errorf("%v", err)
		}
		v.Close()
	}
}

func TestNewVault_RefusesWrongOptions(t *testing.T) {
	t.Parallel()
	good := VaultOptions{Address: "https://vault.example:8200", Now: time.Now,
		Auth: VaultAuth{Method: VaultToken, Credential: constant(mark)}}
	if _, err := NewVault(good); err != nil {
		t.Error(err)
	}
	empty := t.TempDir() + "/empty"
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(o *VaultOptions){
		"no address": func(o *VaultOptions) { o.Address = "" }, "http": func(o *VaultOptions) { o.Address = "http://vault.example" },
		"path": func(o *VaultOptions) { o.Address += "/v1" }, "user": func(o *VaultOptions) { o.Address = "https://a:" + mark + "@b" },
		"query": func(o *VaultOptions) { o.Address += "?a" }, "scheme": func(o *VaultOptions) { o.Address = "ftp://127.0.0.1" },
		"method": func(o *VaultOptions) { o.Auth.Method = "ldap" }, "role": func(o *VaultOptions) { o.Auth.Method = VaultAppRole },
		"credential": func(o *VaultOptions) { o.Auth.Credential = nil }, "clock": func(o *VaultOptions) { o.Now = nil },
		"namespace": func(o *VaultOptions) { o.Namespace = "a\nb" }, "certificates": func(o *VaultOptions) { o.CA = empty },
		"localhost": func(o *VaultOptions) { o.Address = "http://localhost:8200" },
	} {
		o := good
		change(&o)
		if _, err := NewVault(o); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		} else {
			mustHide(t, err)
		}
	}
	o := good
	o.CA = "/nonexistent"
	if _, err := NewVault(o); !fault.Is(err, fault.NotFound) {
		t.Errorf("%v", err)
	}
}

// TestVault_BoundsHostileServer has answers that no Vault gives.
func TestVault_BoundsHostileServer(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("redirected with token %q", r.Header.Get("X-Vault-Token"))
	}))
	defer elsewhere.Close()
	reply := func(w http.ResponseWriter, kind, body string) {
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write([]byte(body))
	}
	lookup := `{"data":{"ttl":0,"renewable":false}}`
	mount := `{"data":{"path":"kv/","type":"kv","options":{"version":"2"}}}`
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		want  fault.Kind
	}{
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/"+mark, http.StatusTemporaryRedirect)
		}, fault.Denied},
		"permanent redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusPermanentRedirect)
		}, fault.Denied},
		"HTML":       {func(w http.ResponseWriter, _ *http.Request) { reply(w, "text/html", "<p>"+mark) }, fault.Unavailable},
		"no type":    {func(w http.ResponseWriter, _ *http.Request) { reply(w, "", mount) }, fault.Unavailable},
		"not JSON":   {func(w http.ResponseWriter, _ *http.Request) { reply(w, "application/json", mark) }, fault.Unavailable},
		"a list":     {func(w http.ResponseWriter, _ *http.Request) { reply(w, "application/json", `["`+mark+`"]`) }, fault.Unavailable},
		"empty":      {func(w http.ResponseWriter, _ *http.Request) { reply(w, "application/json", "") }, fault.Unavailable},
		"no content": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, fault.Unavailable},
		"large": {func(w http.ResponseWriter, _ *http.Request) {
			reply(w, "application/json", `{"data":"`+strings.Repeat(mark, maxAnswer/len(mark)+1)+`"}`)
		}, fault.TooLarge},
		"endless": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for {
				if _, err := w.Write([]byte(mark)); err != nil {
					return
				}
			}
		}, fault.TooLarge},
		"large head": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat(mark, 8000))
			reply(w, "application/json", "{}")
		}, fault.Unavailable},
		"an echo": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			reply(w, "application/json", `{"errors":["`+r.Header.Get("X-Vault-Token")+`"]}`)
		}, fault.Invalid},
		"broken HTTP": {func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, _ = conn.Write([]byte("HTTP/1.1 " + r.Header.Get("X-Vault-Token") + "\r\n\r\n"))
				conn.Close()
			}
		}, fault.Unavailable},
		"another mount": {func(w http.ResponseWriter, _ *http.Request) {
			reply(w, "application/json", `{"data":{"path":"`+mark+`/","type":"kv"}}`)
		}, fault.Unavailable},
		"negative lease": {func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/mounts/") {
				reply(w, "application/json", `{"data":{"path":"kv/","type":"database"}}`)
				return
			}
			reply(w, "application/json", `{"lease_id":"x","lease_duration":-1,"data":{"f":"`+mark+`"}}`)
		}, fault.Unavailable},
		"a newline": {func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/mounts/") {
				reply(w, "application/json", mount)
				return
			}
			reply(w, "application/json", `{"data":{"data":{"f":"`+mark+`\n"}}}`)
		}, fault.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Vault-Namespace") != "team" {
					t.Errorf("namespace %q", r.Header.Get("X-Vault-Namespace"))
				}
				if strings.HasSuffix(r.URL.Path, "lookup-self") {
					reply(w, "application/json", lookup)
					return
				}
				c.serve(w, r)
			}))
			defer s.Close()
			v, err := NewVault(VaultOptions{Address: s.URL, Namespace: "team", Now: time.Now,
				Auth: VaultAuth{Method: VaultToken, Credential: constant(mark)}})
			if err != nil {
				t.Fatal(err)
			}
			defer v.Close()
			_, err = v.Get(t.Context(), Ref{Path: "kv/x", Field: "f"})
			mustFail(t, err, c.want)
		})
	}
}

func TestVault_HonorsContext(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	ctx, cancel := context.WithCancelCause(t.Context())
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}))
	defer s.Close()
	v, err := NewVault(VaultOptions{Address: s.URL, Now: time.Now,
		Auth: VaultAuth{Method: VaultToken, Credential: constant(mark)}})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	done := make(chan error, 2)
	go func() { done <- v.Check(ctx) }()
	<-asked
	go func() { done <- v.Check(ctx) }() // waits for the login of the other
	cancel(fault.New(fault.Cancelled, "the client left"))
	for range 2 {
		mustFail(t, <-done, fault.Cancelled)
	}
	s.Close()
	err = v.Check(t.Context())
	if mustFail(t, err, fault.Unavailable); errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	v.client.http.Timeout = time.Nanosecond
	mustFail(t, v.Check(t.Context()), fault.Timeout)
}

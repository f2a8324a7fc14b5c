package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/httpapi"
)

func TestNetRoutes_ReachEngine(t *testing.T) {
	t.Parallel()
	f := &fake{}
	c := serve(t, f)
	ctx := t.Context()
	when := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	res, err := c.Net(ctx, "a/b", wire.NetRequest{Last: -1, Since: when, Kinds: []string{"dns", "deny"}})
	if err != nil || res.Now.Conns != 1 || res.Events == nil ||
		f.last() != `net["a/b",{"last":-1,"since":"2026-01-02T03:04:05.0000006Z","kinds":["dns","deny"]}]` {
		t.Errorf("%+v, %v after %s", res, err, f.last())
	}
	var kinds []string
	err = c.NetEvents(ctx, "a", wire.NetRequest{}, func(ev wire.NetEvent) error {
		kinds = append(kinds, ev.Kind+" "+ev.Name)
		return nil
	})
	if !client.IsKind(err, client.KindUnavailable) || strings.Join(kinds, ",") != "dns a\nb,deny a\nb" ||
		f.last() != `follownet["a",{}]` {
		t.Errorf("%q, %v after %s", kinds, err, f.last())
	}
	why, err := c.Why(ctx, "a", wire.WhyRequest{Host: "udp://[2001:db8::1]:53", Method: "GET", Path: "/a?b&c=d"})
	if err != nil || why.Verdict != "deny" ||
		f.last() != `why["a",{"host":"udp://[2001:db8::1]:53","method":"GET","path":"/a?b\u0026c=d"}]` {
		t.Errorf("%+v, %v after %s", why, err, f.last())
	}
	allowed, err := c.Allow(ctx, "a", wire.AllowRequest{Allow: []string{"example.com"}, ForMS: 5})
	if err != nil || allowed.Policy != "sha256:0" || f.last() != `allow["a",{"allow":["example.com"],"for_ms":5}]` {
		t.Errorf("%+v, %v after %s", allowed, err, f.last())
	}
	if q, err := c.PendingRequests(ctx, "a"); err != nil || len(q.Asking) != 1 || f.last() != `asking["a"]` {
		t.Errorf("%+v, %v after %s", q, err, f.last())
	}
	yes, err := c.Approve(ctx, "a", wire.AnswerRequest{Rules: []string{"a.example:80"}, ForMS: 7})
	if err != nil || yes.Policy != "sha256:0" || len(yes.Settled) != 1 ||
		f.last() != `approve["a",{"rules":["a.example:80"],"for_ms":7}]` {
		t.Errorf("%+v, %v after %s", yes, err, f.last())
	}
	no, err := c.Deny(ctx, "a", wire.AnswerRequest{Rules: []string{"a.example"}})
	if err != nil || no.Policy != "sha256:1" || no.Settled == nil || f.last() != `deny["a",{"rules":["a.example"]}]` {
		t.Errorf("%+v, %v after %s", no, err, f.last())
	}
	f.err = fault.New(fault.NotFound, "none")
	if err := c.NetEvents(ctx, "a", wire.NetRequest{}, nil); !client.IsKind(err, client.KindNotFound) {
		t.Error(err)
	}
}

func TestGrantRoutes_ReachEngine(t *testing.T) {
	t.Parallel()
	f := &fake{}
	c := serve(t, f)
	ctx := t.Context()
	if all, err := c.Grants(ctx, "a/b"); err != nil || len(all) != 1 || f.last() != `listgrants["a/b"]` {
		t.Errorf("%+v, %v after %s", all, err, f.last())
	}
	g, err := c.Grant(ctx, "a", "git/hub", wire.GrantSpec{Preset: "github", Uses: 2})
	if err != nil || g.Name != "git/hub" || f.last() != `givegrant["a","git/hub",{"preset":"github","uses":2}]` {
		t.Errorf("%+v, %v after %s", g, err, f.last())
	}
	if err := c.Revoke(ctx, "a", "github"); err != nil || f.last() != `revokegrant["a","github"]` {
		t.Errorf("%v after %s", err, f.last())
	}
	f.err = fault.New(fault.Unsupported, "no gate")
	if _, err := c.Grant(ctx, "a", "g", wire.GrantSpec{}); !client.IsKind(err, client.KindUnsupported) {
		t.Error(err)
	}
	before := f.last()
	h := newServer(auth.Principal{TokenID: "t", Scope: auth.Operate}, httpapi.Options{Roles: roles(f)})
	for method, want := range map[string]int{http.MethodPut: http.StatusForbidden, http.MethodDelete: http.StatusForbidden} {
		w := ask(h, method, "/v1/sandboxes/a/grants/g", `{}`)
		if w.Code != want || f.last() != before {
			t.Errorf("%s without the scope admin: %d %s", method, w.Code, w.Body)
		}
	}
}

func TestConsentRoutes_ReachEngine(t *testing.T) {
	t.Parallel()
	f := &fake{}
	c := serve(t, f)
	ctx := t.Context()
	if all, err := c.Consents(ctx); err != nil || len(all) != 1 || f.last() != `listconsentsnull` {
		t.Errorf("%+v, %v after %s", all, err, f.last())
	}
	req := wire.ConsentRequest{Policy: []wire.PolicyFile{{Level: "project", Name: "/p", Text: "t"}}, Digests: []string{"d"}}
	if all, err := c.Consent(ctx, req); err != nil || len(all) != 1 ||
		f.last() != `consent[{"policy":[{"level":"project","name":"/p","text":"t"}],"digests":["d"]}]` {
		t.Errorf("%+v, %v after %s", all, err, f.last())
	}
	if err := c.RevokeConsent(ctx, "sha256:0"); err != nil || f.last() != `revokeconsent["sha256:0"]` {
		t.Errorf("%v after %s", err, f.last())
	}
	before := f.last()
	h := newServer(auth.Principal{TokenID: "t", Scope: auth.Operate}, httpapi.Options{Roles: roles(f)})
	for method, at := range map[string]string{http.MethodGet: "", http.MethodPost: "", http.MethodDelete: "/sha256:0"} {
		if w := ask(h, method, "/v1/consents"+at, `{"policy":[],"digests":[]}`); w.Code != http.StatusForbidden ||
			f.last() != before {
			t.Errorf("%s without the scope admin: %d %s", method, w.Code, w.Body)
		}
	}
}

func TestNetRoutes_RejectInvalidQueries(t *testing.T) {
	t.Parallel()
	f := &fake{}
	h := owned(httpapi.Options{Roles: roles(f)})
	for _, at := range []string{"/net?since=yesterday", "/net/events?since=1", "/net?last=x", "/net/why"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/sandboxes/a"+at, nil))
		if w.Code != http.StatusBadRequest || f.last() != "" {
			t.Errorf("%s: %d %s", at, w.Code, w.Body)
		}
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/v1/sandboxes/a/net/events", nil)
	r.Header.Set("Accept", "text/event-stream")
	h.ServeHTTP(w, r)
	if got := w.Body.String(); w.Header().Get("Content-Type") != "text/event-stream" ||
		!strings.HasPrefix(got, "event: dns\ndata: {") || !strings.Contains(got, "\n\nevent: deny\n") {
		t.Errorf("%q", got)
	}
}

// TestLimitedToken_CanDenyButNotAllow checks that a token for some sandboxes only cannot widen
// what they can reach.
func TestLimitedToken_CanDenyButNotAllow(t *testing.T) {
	t.Parallel()
	f := &two{}
	for _, c := range []struct {
		p    auth.Principal
		body string
		want int
	}{
		{auth.Principal{TokenID: "t", Scope: auth.Operate}, `{"allow":["example.com"]}`, http.StatusOK},
		{auth.Principal{TokenID: "t", Scope: auth.Operate, Sandboxes: []string{"1"}}, `{"deny":["example.com"]}`,
			http.StatusOK},
		{auth.Principal{TokenID: "t", Scope: auth.Operate, Sandboxes: []string{"1"}}, `{"allow":["example.com"]}`,
			http.StatusForbidden},
		{auth.Principal{TokenID: "t", Scope: auth.Operate, Sandboxes: []string{"1"}},
			`{"allow":["example.com"],"deny":["a.example"],"for_ms":1}`, http.StatusForbidden},
		{auth.Principal{TokenID: "t", Scope: auth.Admin, Sandboxes: []string{"1"}}, `{"allow":["example.com"]}`,
			http.StatusForbidden},
		{auth.Principal{TokenID: "t", Scope: auth.Read}, `{"deny":["example.com"]}`, http.StatusForbidden},
	} {
		before := f.last()
		w := ask(newServer(c.p, httpapi.Options{Roles: roles(f)}), http.MethodPost, "/v1/sandboxes/mine/net/allow", c.body)
		if w.Code != c.want {
			t.Errorf("%+v %s: %d %s", c.p, c.body, w.Code, w.Body)
		}
		if c.want == http.StatusForbidden && f.last() != before {
			t.Errorf("%+v %s: engine call %s", c.p, c.body, f.last())
		}
	}
	// It cannot approve pending requests either.
	for _, c := range []struct {
		p       auth.Principal
		approve int
		deny    int
	}{
		{auth.Principal{TokenID: "t", Scope: auth.Operate}, http.StatusOK, http.StatusOK},
		{auth.Principal{TokenID: "t", Scope: auth.Operate, Sandboxes: []string{"1"}}, http.StatusForbidden, http.StatusOK},
		{auth.Principal{TokenID: "t", Scope: auth.Admin, Sandboxes: []string{"1"}}, http.StatusForbidden, http.StatusOK},
		{auth.Principal{TokenID: "t", Scope: auth.Read}, http.StatusForbidden, http.StatusForbidden},
	} {
		for verb, want := range map[string]int{"approve": c.approve, "deny": c.deny} {
			before := f.last()
			w := ask(newServer(c.p, httpapi.Options{Roles: roles(f)}), http.MethodPost, "/v1/sandboxes/mine/net/"+verb,
				`{"rules":["a.example"]}`)
			if w.Code != want || want == http.StatusForbidden && f.last() != before {
				t.Errorf("%+v %s: %d %s; engine call %s", c.p, verb, w.Code, w.Body, f.last())
			}
		}
	}
}

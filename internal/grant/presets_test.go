package grant

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// placeholderOf returns the placeholder of a grant for a secret of kind k; that of AWS has a session token.
func placeholderOf(t testing.TB, k Kind, grant string) string {
	t.Helper()
	value := "uM4XD2kUW5zN8yqJ0pR7tLs3"
	for _, e := range examples {
		if e.kind == k {
			value = e.value
		}
	}
	p, err := Placeholder(key, "box", grant, 0, KindOf(value))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ordinary are requests that a client sends with the credential of each preset.
var ordinary = map[string][]string{
	"anthropic": {"POST api.anthropic.com /v1/messages"},
	"aws":       {"PUT bucket.s3.eu-west-1.amazonaws.com /key"},
	"bearer":    {"GET api.example.com /v1/things"},
	"github": {"GET api.github.com /user", "POST api.github.com /repos/acme/web/pulls",
		"POST github.com /acme/web.git/git-upload-pack"},
	"gitlab": {"GET gitlab.com /api/v4/projects/42/merge_requests", "POST gitlab.com /api/v4/projects/42/issues",
		"GET gitlab.com /api/v4/projects/42/repository/archive.tar.gz"},
	"google":      {"POST generativelanguage.googleapis.com /v1beta/models/gemini-pro:generateContent"},
	"huggingface": {"GET huggingface.co /api/whoami-v2", "POST router.huggingface.co /v1/chat/completions"},
	"npm": {"GET registry.npmjs.org /@acme%2fweb", "PUT registry.npmjs.org /@acme%2fweb",
		"GET registry.npmjs.org /-/whoami"},
	"openai": {"POST api.openai.com /v1/responses"},
	"pypi":   {"POST upload.pypi.org /legacy/"},
}

// minting are requests that would create a credential, or return one.
var minting = map[string][]string{
	"anthropic": {"POST api.anthropic.com /v1/organizations/api_keys", "GET api.anthropic.com /v1/organizations/users",
		"POST api.anthropic.com /api/oauth/claude_cli/create_api_key"},
	"github": {"POST api.github.com /app/installations/1/access_tokens", "POST api.github.com /user/keys",
		"POST api.github.com /authorizations", "POST api.github.com /repos/acme/web/keys", "POST api.github.com /graphql",
		"POST api.github.com /repos/acme/web/hooks", "PATCH api.github.com /orgs/acme/hooks/7",
		"PUT api.github.com /repos/acme/web/actions/secrets/X", "POST api.github.com /USER/Keys/",
		"POST api.github.com //user/keys", "POST api.github.com /user%2fkeys", "POST api.github.com /x/../user/keys",
		"POST api.github.com /user;x/keys", "POST api.github.com /repos/acme/web/actions/runners/registration-token",
		"POST api.github.com /repositories/1300192/keys", "POST api.github.com /repositories/1300192/hooks",
		"PUT api.github.com /repositories/1300192/actions/secrets/X", "POST api.github.com /organizations/7/hooks"},
	"gitlab": {"POST gitlab.com /api/v4/user/personal_access_tokens", "POST gitlab.com /api/v4/projects/1/deploy_tokens",
		"POST gitlab.com /api/v4/personal_access_tokens/self/rotate", "POST gitlab.com /api/v4/projects/1/access_tokens",
		"GET gitlab.com /api/v4/projects/1/variables", "POST gitlab.com /api/v4/user/keys", "POST gitlab.com /api/graphql",
		"POST gitlab.com /api/v4/user/keys.json", "POST gitlab.com /api/v4/user/keys%2Ejson/",
		"GET gitlab.com /api/v4/projects/1/variables.xml", "GET gitlab.com /api/v4/projects/1/triggers",
		"GET gitlab.com /api/v4/projects/1/triggers/5", "POST gitlab.com /api/v4/projects/1/runners/reset_registration_token",
		"GET gitlab.com /api/v4/packages/conan/v1/users/authenticate",
		"GET gitlab.com /api/v4/projects/1/packages/conan/v2/users/authenticate",
		"POST gitlab.com /api/v4/ai/duo_workflows/direct_access", "GET gitlab.com /api/v4/projects/1/pipelines/2/variables"},
	"google": {"POST generativelanguage.googleapis.com /v1alpha/auth_tokens",
		"POST generativelanguage.googleapis.com /batch", "POST generativelanguage.googleapis.com /batch/v1beta"},
	"huggingface": {"POST huggingface.co /api/settings/tokens", "GET huggingface.co /settings/tokens",
		"GET huggingface.co /api/spaces/acme/demo/jwt", "GET huggingface.co /api/models/gpt2/jwt"},
	"npm": {"POST registry.npmjs.org /-/npm/v1/tokens", "POST registry.npmjs.org /-/npm/v1/user",
		"POST registry.npmjs.org /-/npm/v1/oidc/token/exchange/package/x"},
	"openai": {"POST api.openai.com /v1/organization/admin_api_keys", "POST api.openai.com /v1/realtime/client_secrets",
		"POST api.openai.com /v1/organization/projects/p/service_accounts",
		"POST api.openai.com /v1/realtime/translations/client_secrets"},
	"pypi": {"POST upload.pypi.org /_/oidc/mint-token"},
}

// carrying returns requests with the placeholder at each site of a head.
func carrying(t testing.TB, g Issued, line string) (all []Use) {
	t.Helper()
	method, rest, _ := strings.Cut(line, " ")
	host, path, _ := strings.Cut(rest, " ")
	for _, s := range g.Sites {
		u := use(t, method, "https://"+host+path)
		switch s.In {
		case InHeader, InBearer:
			u.Header.Set(s.Name, strings.TrimSpace(s.Part+" "+g.Placeholder))
		case InBasic:
			r := http.Request{Header: u.Header}
			if r.SetBasicAuth("someone", g.Placeholder); s.Part == "user" {
				r.SetBasicAuth(g.Placeholder, "x-oauth-basic")
			}
		case InQuery:
			u.HTTP.Query = s.Name + "=" + g.Placeholder
		case InSigV4:
			id := AWS.Parts(g.Placeholder)[0]
			u.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+id+
				"/20260102/eu-west-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature="+strings.Repeat("0", 64))
		}
		all = append(all, u)
	}
	return all
}

func TestPresets_GrantOrdinaryAndDenyMintingRequests(t *testing.T) {
	t.Parallel()
	all, err := presets()
	if err != nil || len(all) < 10 {
		t.Fatalf("%d presets, %v", len(all), err)
	}
	if names := PresetNames(); !slices.IsSorted(names) || len(slices.Compact(names)) != len(all) {
		t.Errorf("the names are not in order: %v", names)
	}
	for _, p := range all {
		item := Item{Preset: p.Name}
		if p.Name == "bearer" {
			item.Hosts = []string{"api.example.com"}
		}
		g, err := item.Grant(p.Name, now)
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
			continue
		}
		if !strings.HasPrefix(p.Source, "https://") || p.Name != "bearer" && (len(p.Env) == 0 || p.Kind == "") {
			t.Errorf("%s is incomplete", p.Name)
		}
		if _, err := ParseKind(p.Kind); err != nil && p.Name != "bearer" {
			t.Errorf("%s: %v", p.Name, err)
		}
		issued := Issued{Grant: g, Placeholder: placeholderOf(t, g.Kind, p.Name)}
		s := set(t, issued)
		for _, line := range ordinary[p.Name] {
			for _, u := range carrying(t, issued, line) {
				if r := s.Decide(u, nil, now); r.Deny != nil || len(r.Put) != 1 || r.Put[0].Grant != p.Name {
					t.Errorf("%s: %s: %+v, %+v", p.Name, line, r.Put, r.Deny)
				}
			}
		}
		for _, line := range minting[p.Name] {
			for _, u := range carrying(t, issued, line) {
				if r := s.Decide(u, nil, now); r.Deny == nil || len(r.Put) > 0 || r.Deny.Grant != p.Name || r.Deny.Hint == "" {
					t.Errorf("%s: %s is not denied: %+v", p.Name, line, r.Put)
				}
			}
		}
		if ordinary[p.Name] == nil || p.Deny != nil && minting[p.Name] == nil {
			t.Errorf("%s has no requests here", p.Name)
		}
		everyDenied(t, s, issued)
	}
}

// everyDenied checks that each denied path is denied, for each of its methods.
func everyDenied(t *testing.T, s Set, g Issued) {
	for _, d := range g.Deny {
		methods := d.Methods
		if methods == nil {
			methods = []string{"GET", "POST", "PUT", "PATCH", "DELETE"}
		}
		if d.Why == "" || d.Paths == nil {
			t.Errorf("%s: %+v denies all, or has no reason", g.Name, d)
		}
		for _, m := range methods {
			for _, path := range d.Paths {
				line := m + " " + strings.TrimPrefix(g.Hosts[0].String(), "*.") + " " + strings.ReplaceAll(path, "*", "x")
				for _, u := range carrying(t, g, line) {
					if r := s.Decide(u, nil, now); r.Deny == nil || !strings.Contains(r.Deny.Reason, d.Why) {
						t.Errorf("%s: %s: %+v", g.Name, line, r.Deny)
					}
				}
			}
		}
	}
}

func TestPresetAWS_LimitsServices(t *testing.T) {
	t.Parallel()
	sign := func(g Issued, scope string) Use {
		host := "x.amazonaws.com"
		if region, service, _ := strings.Cut(scope, "/"); service != "" && !strings.Contains(service, "/") {
			host = strings.ToLower(service) + "." + region + ".amazonaws.com"
		}
		u := use(t, "POST", "https://"+host+"/")
		u.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+AWS.Parts(g.Placeholder)[0]+"/20260102/"+scope+
			"/aws4_request,SignedHeaders=host,Signature=0")
		return u
	}
	for _, c := range []struct {
		site, scope string
		granted     bool
	}{
		{``, "eu-west-1/s3", true}, {``, "eu-west-1/dynamodb", true},
		{``, "eu-west-1/sts", false}, {``, "us-east-1/iam", false}, {``, "us-east-1/IAM", false},
		{``, "eu-west-1/secretsmanager", false}, {``, "eu-west-1/", false}, {``, "eu-west-1", false}, {``, "a/b/s3", false},
		{`, "services": ["secretsmanager"]`, "eu-west-1/secretsmanager", true},
		{`, "services": ["secretsmanager"]`, "eu-west-1/s3", false},
		{`, "regions": ["eu-west-1"]`, "us-east-1/s3", false}, {`, "regions": ["eu-west-1"]`, "eu-west-1/s3", true},
		{`, "regions": ["eu-west-1"]`, "eu-west-1/sts", false},
	} {
		g := Issued{Grant: given(t, "aws", `{"preset": "aws", "sites": [{"in": "sigv4"`+c.site+`}]}`),
			Placeholder: placeholderOf(t, AWS, "aws")}
		r := set(t, g).Decide(sign(g, c.scope), nil, now)
		if (r.Deny == nil) != c.granted || len(r.Put) == 1 != c.granted {
			t.Errorf("%s %s: %+v, %+v", c.site, c.scope, r.Put, r.Deny)
		}
	}
	// The secret key never is in a request; the session token comes with the ID.
	g := Issued{Grant: given(t, "aws", `{"preset": "aws"}`), Placeholder: placeholderOf(t, AWS, "aws")}
	parts := AWS.Parts(g.Placeholder)
	u := sign(g, "eu-west-1/s3")
	u.Header.Set("X-Amz-Security-Token", parts[2])
	if r := set(t, g).Decide(u, nil, now); r.Deny != nil || len(r.Put) != 1 || r.Put[0].Placeholder != g.Placeholder {
		t.Errorf("with a session token: %+v, %+v", r.Put, r.Deny)
	}
	u.Header.Set("X-Key", parts[1])
	if r := set(t, g).Decide(u, nil, now); r.Deny == nil {
		t.Error("the secret key leaves in a header")
	}
	for name, value := range map[string]string{"X-Amz-Security-Token": parts[1],
		"Authorization": "AWS4-HMAC-SHA256 Credential=" + parts[0] + "/20260102/eu-west-1/s3/aws4_request, SignedHeaders=" +
			parts[0]} {
		u = sign(g, "eu-west-1/s3")
		u.Header.Set(name, value)
		if r := set(t, g).Decide(u, nil, now); r.Deny == nil {
			t.Errorf("%s: %s is signed", name, value)
		}
	}
	u = sign(g, "eu-west-1/s3")
	u.Header.Set("Authorization", strings.Replace(u.Header.Get("Authorization"), "aws4_request", "aws5_request", 1))
	if r := set(t, g).Decide(u, nil, now); r.Deny == nil {
		t.Error("a scope of another version is signed")
	}
	query := use(t, "GET", "https://b.s3.amazonaws.com/k")
	query.HTTP.Query = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=" + parts[0] +
		"%2F20260102%2Feu-west-1%2Fs3%2Faws4_request"
	if r := set(t, g).Decide(query, nil, now); r.Deny != nil || len(r.Put) != 1 {
		t.Errorf("presigned: %+v, %+v", r.Put, r.Deny)
	}
	u = sign(g, "eu-west-1/s3")
	u.Header.Set("Authorization", u.Header.Get("Authorization")+",Credential=x/20260102/eu-west-1/s3/aws4_request")
	if r := set(t, g).Decide(u, nil, now); r.Deny == nil {
		t.Error("a request with two credentials is signed")
	}
	for _, algorithm := range []string{"AWS4-ECDSA-P256-SHA256", "AWS", "aws4-hmac-sha256"} {
		u = sign(g, "eu-west-1/s3")
		u.Header.Set("Authorization", strings.Replace(u.Header.Get("Authorization"), "AWS4-HMAC-SHA256", algorithm, 1))
		if r := set(t, g).Decide(u, nil, now); r.Deny == nil {
			t.Errorf("%s is signed", algorithm)
		}
	}
}

func TestGrant_CanBeStored(t *testing.T) {
	t.Parallel()
	i := Item{Preset: "github", Paths: []string{"/repos/acme/*"}, Uses: 3}
	text, err := json.Marshal(i)
	if err != nil || string(text) != `{"preset":"github","paths":["/repos/acme/*"],"uses":3}` {
		t.Errorf("%s, %v", text, err)
	}
}

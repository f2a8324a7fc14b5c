package grant

import (
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestSigV4_ChecksHosts checks that the host of a request must be one of the service that the signature is for.
func TestSigV4_ChecksHosts(t *testing.T) {
	t.Parallel()
	g := Issued{Grant: given(t, "aws", `{"preset": "aws", "hosts": ["*.amazonaws.com", "*.amazonaws.com.cn", "*.api.aws",
		"*.on.aws", "*.api.amazonwebservices.com.cn", "s3.corp.example"]}`), Placeholder: placeholderOf(t, AWS, "aws")}
	named := Issued{Grant: given(t, "named", `{"preset": "aws", "sites": [{"in": "sigv4", "services": ["ec2", "sts",
		"redshift-serverless"]}]}`),
		Placeholder: placeholderOf(t, AWS, "named")}
	for _, x := range []struct {
		host, scope string
		g           Issued
		signed      bool
	}{
		{"s3.amazonaws.com", "us-east-1/s3", g, true},
		{"iam.s3.eu-west-1.amazonaws.com", "eu-west-1/s3", g, true}, // a bucket
		{"b.s3.dualstack.us-west-2.amazonaws.com", "us-west-2/s3", g, true},
		{"b.s3-us-west-2.amazonaws.com", "us-west-2/s3", g, true},
		{"b.s3-accelerate.amazonaws.com", "eu-west-1/s3", g, true},
		{"vpce-1-2.s3.us-east-1.vpce.amazonaws.com", "us-east-1/s3", g, true},
		{"b.s3.cn-north-1.amazonaws.com.cn", "cn-north-1/s3", g, true},
		{"dynamodb.us-gov-east-1.amazonaws.com", "us-gov-east-1/dynamodb", g, true},
		{"1234.ddb.eu-west-1.amazonaws.com", "eu-west-1/dynamodb", g, true},
		{"dynamodb-fips.us-east-1.amazonaws.com", "us-east-1/dynamodb", g, true},
		{"streams.dynamodb.eu-west-1.amazonaws.com", "eu-west-1/dynamodb", g, true},
		{"bedrock-runtime.us-east-1.amazonaws.com", "us-east-1/bedrock", g, true},
		{"email.us-east-1.amazonaws.com", "us-east-1/ses", g, true},
		{"sqs.us-east-1.api.aws", "us-east-1/sqs", g, true},
		{"x.lambda-url.us-east-1.on.aws", "us-east-1/lambda", g, true},
		{"search-x.us-east-1.es.amazonaws.com", "us-east-1/es", g, true},
		{"x.execute-api.eu-west-1.amazonaws.com", "eu-west-1/execute-api", g, true},
		{"s3.corp.example", "anywhere/s3", g, true},
		{"iam.amazonaws.com", "us-east-1/s3", g, false},
		{"sts.eu-west-1.amazonaws.com", "eu-west-1/s3", g, false},
		{"s3.iam.amazonaws.com", "us-east-1/s3", g, false},
		{"s3.eu-west-1.amazonaws.com", "us-east-1/s3", g, false},
		{"eu-west-1.amazonaws.com", "eu-west-1/s3", g, false},
		{"s3express-control.eu-west-1.amazonaws.com", "eu-west-1/s3", g, false},
		{"1234.s3-control.eu-west-1.amazonaws.com", "eu-west-1/s3", g, false}, // has GetDataAccess
		{"1234.s3-control-fips.dualstack.us-east-1.amazonaws.com", "us-east-1/s3", g, false},
		{"1234.control.vpce-1a-2b.s3.eu-west-1.vpce.amazonaws.com", "eu-west-1/s3", g, false},
		{"sts-fips.us-east-1.amazonaws.com", "us-east-1/fips", g, false},
		{"cognito-identity-fips.us-east-1.amazonaws.com", "us-east-1/cognito", g, false},
		{"ecs-a-1.us-east-1.amazonaws.com", "us-east-1/1", g, false},
		{"sts.cn-north-1.api.amazonwebservices.com.cn", "cn-north-1/s3", g, false},
		{"redshift-serverless-fips.us-east-1.amazonaws.com", "us-east-1/redshift-serverless", named, true},
		{"ec2-instance-connect.eu-west-1.amazonaws.com", "eu-west-1/ec2", named, false},
		{"ec2.eu-west-1.amazonaws.com", "eu-west-1/ec2", named, true},
		{"sts.eu-west-1.amazonaws.com", "eu-west-1/sts", named, true},
		{"sts.eu-west-1.amazonaws.com", "eu-west-1/ec2", named, false},
	} {
		u := use(t, "POST", "https://"+x.host+"/")
		u.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+AWS.Parts(x.g.Placeholder)[0]+"/20260102/"+x.scope+
			"/aws4_request,SignedHeaders=host,Signature=0")
		r := set(t, x.g).Decide(u, nil, now)
		if (r.Deny == nil) != x.signed || len(r.Put) == 1 != x.signed ||
			r.Deny != nil && !strings.Contains(r.Deny.Reason, "host "+x.host+" is ") {
			t.Errorf("%s for %s: %+v, %+v", x.scope, x.host, r.Put, r.Deny)
		}
	}
	u := use(t, "POST", "https://s3.eu-west-1.amazonaws.com/")
	u.Header.Set("Authorization", "AWS4-ECDSA-P256-SHA256 Credential="+AWS.Parts(g.Placeholder)[0]+
		"/20260102/s3/aws4_request,SignedHeaders=host,Signature=0")
	if r := set(t, g).Decide(u, nil, now); r.Deny == nil || !strings.Contains(r.Deny.Reason, "version 4A") {
		t.Errorf("%+v", r.Deny)
	}
}

// TestSigV4_RefusesServicesWithCredentials checks that the preset signs for no service that returns an access key, unless
// a site names it.
func TestSigV4_RefusesServicesWithCredentials(t *testing.T) {
	t.Parallel()
	for service, host := range map[string]string{
		"s3-control": "1234.s3-control", "sts": "sts", "codepipeline": "codepipeline", "finspace-api": "api.finspace-api",
		"eks-auth": "eks-auth", "deadline": "deadline", "ec2": "ec2",
	} {
		for item, signed := range map[string]bool{
			`{"preset": "aws"}`: false,
			`{"preset": "aws", "sites": [{"in": "sigv4", "services": ["` + service + `", "s3"]}]}`: true,
		} {
			g := Issued{Grant: given(t, "aws", item), Placeholder: placeholderOf(t, AWS, "aws")}
			u := use(t, "POST", "https://"+host+".us-east-1.amazonaws.com/")
			scope := strings.Replace(service, "s3-control", "s3", 1)
			u.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+AWS.Parts(g.Placeholder)[0]+"/20260102/us-east-1/"+
				scope+"/aws4_request,SignedHeaders=host,Signature=0")
			if r := set(t, g).Decide(u, nil, now); (len(r.Put) == 1) != signed {
				t.Errorf("%s with %s: %+v, %+v", service, item, r.Put, r.Deny)
			}
		}
	}
}

// TestNewSet_ChecksAccessKeys checks that an access key of AWS only signs, and that nothing else does.
func TestNewSet_ChecksAccessKeys(t *testing.T) {
	t.Parallel()
	for item, kind := range map[string]Kind{
		`{"hosts": ["a.example"], "sites": [{"in": "bearer"}]}`:                  AWS,
		`{"hosts": ["a.example"], "sites": [{"in": "bearer"}, {"in": "sigv4"}]}`: AWS,
		`{"hosts": ["a.example"], "sites": [{"in": "sigv4"}]}`:                   Opaque,
	} {
		g := Issued{Grant: given(t, "g", item), Placeholder: placeholderOf(t, kind, "g")}
		g.Kind = kind
		if _, err := NewSet("box", []Issued{g}); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("%s with %s: %v", item, kind, err)
		}
		g.Revoked = true
		if _, err := NewSet("box", []Issued{g}); err != nil {
			t.Errorf("%s, revoked: %v", item, err)
		}
	}
}

// TestVariables checks the variables of an access key.
func TestVariables(t *testing.T) {
	t.Parallel()
	names := []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "X"}
	for placeholder, want := range map[string][]string{
		"id:key":         {"AWS_ACCESS_KEY_ID=id", "AWS_SECRET_ACCESS_KEY=key", "X=id:key"},
		"id:key:token:=": {"AWS_ACCESS_KEY_ID=id", "AWS_SECRET_ACCESS_KEY=key", "AWS_SESSION_TOKEN=token:=", "X=id:key:token:="},
	} {
		if got := AWS.Variables(names, placeholder); !slices.Equal(got, want) {
			t.Errorf("%s: %q", placeholder, got)
		}
	}
	if got := Opaque.Variables(names[:1], "a:b"); !slices.Equal(got, []string{"AWS_ACCESS_KEY_ID=a:b"}) {
		t.Errorf("%q", got)
	}
}

// TestDecide_RequiresPlaceholdersInBodies checks that mode require leaves it to the body, where the site may be there.
func TestDecide_RequiresPlaceholdersInBodies(t *testing.T) {
	t.Parallel()
	g := Issued{Grant: given(t, "g", `{"hosts": ["a.example"], "mode": "require", "sites": [{"in": "bearer"}, {"in": "json",
		"pointer": "/token", "methods": ["POST"], "paths": ["/login"]}]}`), Placeholder: p1}
	s := set(t, g)
	for path, want := range map[string]Mode{"/login": ModeRequire, "/other": ""} {
		u := use(t, "POST", "https://a.example"+path)
		r := s.Decide(u, nil, now)
		if (r.Deny == nil) != (want != "") || len(r.Put) > 0 && (r.Put[0].Mode != want || !slices.Equal(r.Put[0].Placeholders, []string{p1})) {
			t.Errorf("%s: %+v, %+v", path, r.Put, r.Deny)
		}
		u.Header.Set("Authorization", "Bearer "+p1)
		if r = s.Decide(u, nil, now); r.Deny != nil || len(r.Put) == 0 || len(r.Put) == 2 && r.Put[1].Mode != ModeReplace {
			t.Errorf("%s with a header: %+v, %+v", path, r.Put, r.Deny)
		}
	}
}

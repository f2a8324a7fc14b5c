package sigv4

import (
	"crypto/sha256"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// TestParse_Refuses checks requests that are not signed as AWS requires, or whose signature cannot be made.
func TestParse_Refuses(t *testing.T) {
	t.Parallel()
	replaced := func(old, with string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), old, with, 1))
		}
	}
	set := func(name string, values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header[name] = values }
	}
	for want, changes := range map[string][]func(*http.Request){
		"must have one header Authorization":  {set("Authorization"), set("Authorization", "a", "b")},
		"not signed with AWS4-HMAC-SHA256":    {replaced("AWS4-HMAC-SHA256", "AWS"), replaced("HMAC-SHA256 ", "HMAC-SHA256\t")},
		"version 4A":                          {replaced("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"), set("X-Amz-Content-Sha256", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD")},
		"events":                              {set("X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-EVENTS")},
		"Authorization is malformed":          {replaced(",Signature", ",X"), replaced(",Signature", ""), replaced("Credential", "Signature"), replaced("Credential=", "Credential=a,Credential=")},
		"scope of the signature is malformed": {replaced("aws4_request", "aws5_request"), replaced("/s3/", "//"), replaced("/s3/", "/"), replaced("20130524", "20130525"), replaced("us-east-1", strings.Repeat("r", 129)), replaced("us-east-1", "us east"), replaced("/s3/", "/s3/x/")},
		"no date":                             {set("X-Amz-Date", "20130524"), set("X-Amz-Date", "a", "b"), set("X-Amz-Date", "20130524T000000Z", "x")},
		"clock":                               {set("X-Amz-Date", "20130524T001501Z"), set("X-Amz-Date", "20130524T235959Z")},
		"host is not signed":                  {replaced("host;", "")},
		"not in order":                        {replaced("host;", "x;host;"), replaced("host;", "host;host;"), replaced("SignedHeaders=", "SignedHeaders="+strings.Repeat("a;", 101))},
		"malformed":                           {replaced("SignedHeaders=host", "SignedHeaders=Host;host"), replaced("SignedHeaders=", "SignedHeaders=;"), replaced("SignedHeaders=", "SignedHeaders=a b;")},
		"x-amz-acl is not signed":             {set("X-Amz-Acl", "public-read")},
		"must have one header X-Amz-Content-Sha256": {set("X-Amz-Content-Sha256", emptyHash, emptyHash)},
		"X-Amz-Content-Sha256 is invalid":           {set("X-Amz-Content-Sha256", strings.ToUpper(emptyHash)), set("X-Amz-Content-Sha256", "STREAMING"), set("X-Amz-Content-Sha256", emptyHash[1:])},
		"besides a signature in the query":          {func(r *http.Request) { r.URL.RawQuery = "X-Amz-Credential=x" }},
	} {
		for i, change := range changes {
			r := toS3(t, "PUT", "b.s3.amazonaws.com/k", "host;x-amz-content-sha256;x-amz-date", "X-Amz-Content-Sha256: "+unsigned)
			change(r)
			if q, err := Parse(r, exampleDay()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %d: %+v, %v", want, i, q, err)
			}
		}
	}
}

// presignedFor returns a request with a signature in its query.
func presignedFor(t testing.TB, change func(url.Values)) *http.Request {
	v := url.Values{"X-Amz-Algorithm": {algorithm}, "X-Amz-Credential": {otherID + "/20130524/us-east-1/s3/aws4_request"},
		"X-Amz-Date": {"20130524T000000Z"}, "X-Amz-Expires": {"3600"}, "X-Amz-SignedHeaders": {"host"}, "X-Amz-Signature": {zeros}}
	change(v)
	return toS3(t, "GET", "b.s3.amazonaws.com/k?"+v.Encode(), "")
}

// TestParse_RefusesQueries checks signatures in queries.
func TestParse_RefusesQueries(t *testing.T) {
	t.Parallel()
	set := func(name string, values ...string) func(url.Values) { return func(v url.Values) { v[name] = values } }
	for want, changes := range map[string][]func(url.Values){
		"not signed with":                     {set("X-Amz-Algorithm", "AWS")},
		"version 4A":                          {set("X-Amz-Algorithm", "AWS4-ECDSA-P256-SHA256")},
		"X-Amz-Expires":                       {set("X-Amz-Expires", "0"), set("X-Amz-Expires", "604801"), set("X-Amz-Expires", "-1"), set("X-Amz-Expires", "60", "61"), set("X-Amz-Expires"), set("x-amz-expires", "60")},
		"no date":                             {set("X-Amz-Date", ""), set("X-Amz-Date", "20130524T000000Z", "20130524T000000Z")},
		"has expired":                         {set("X-Amz-Date", "20130523T225959Z")},
		"clock":                               {set("X-Amz-Date", "20130524T001501Z")},
		"scope of the signature is malformed": {set("X-Amz-Credential", "a/b"), set("X-Amz-Credential", otherID+"/20130524/us-east-1/s3/aws4_request", "x"), set("x-amz-credential", "x")},
		"host is not signed":                  {set("X-Amz-SignedHeaders", "x")},
		"signed headers are malformed":        {set("x-amz-signedheaders", "host")},
		"X-Amz-Content-Sha256 is invalid":     {set("X-Amz-Content-Sha256", "x"), set("X-Amz-Content-Sha256", streaming)},
	} {
		for i, change := range changes {
			r := presignedFor(t, func(v url.Values) {
				change(v)
				if strings.HasPrefix(v.Get("X-Amz-Date"), "20130523") {
					v.Set("X-Amz-Credential", otherID+"/20130523/us-east-1/s3/aws4_request")
				}
			})
			if q, err := Parse(r, exampleDay()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %d: %+v, %v", want, i, q, err)
			}
		}
	}
}

// TestSign_BoundsQueries checks that a signature in a query expires with the grant, and soon.
func TestSign_BoundsQueries(t *testing.T) {
	t.Parallel()
	key, _ := ParseCredentials([]byte(exampleKey + ":token+/="))
	for _, x := range []struct {
		now, until time.Duration // after the date
		want       string
	}{{0, 0, "900"}, {20 * time.Minute, 0, "2100"}, {59 * time.Minute, 0, "3600"}, {0, time.Minute, "60"},
		{-time.Minute, 30 * time.Second, "30"}, {-2 * time.Minute, -time.Minute, ""}} {
		r := presignedFor(t, func(v url.Values) {
			v.Set("X-Amz-Security-Token", "another")
			v.Set("x-amz-security-token", "another")
			v.Set("X-Amz-SignedHeaders", "host;x-amz-security-token")
		})
		r.Header.Set(tokenName, "another")
		now, until := exampleDay().Add(x.now), time.Time{}
		if x.until != 0 {
			until = exampleDay().Add(x.until)
		}
		q, err := Parse(r, now)
		if err != nil {
			t.Fatal(err)
		}
		err = q.Sign(r, key, sha256.Sum256(nil), now, until, free)
		if err == nil != (x.want != "") || err == nil && r.URL.Query().Get("X-Amz-Expires") != x.want {
			t.Errorf("%+v: %s, %v", x, r.URL, err)
		}
		if err != nil {
			continue
		}
		v := r.URL.Query()
		if len(v[tokenName]) != 1 || v.Has("x-amz-security-token") || v.Get(tokenName) != "token+/=" || r.Header[tokenName] != nil ||
			v.Get("X-Amz-SignedHeaders") != "host" || len(v["X-Amz-Signature"]) != 1 || v.Get("X-Amz-Signature") == zeros {
			t.Errorf("%+v: %s %v", x, r.URL, r.Header)
		}
	}
}

// TestSign_LeavesOutHeadersOfConnections checks that what is not passed on is not signed.
func TestSign_LeavesOutHeadersOfConnections(t *testing.T) {
	t.Parallel()
	r := toS3(t, "PUT", "b.s3.amazonaws.com/k", "connection;expect;host;transfer-encoding;x-amz-content-sha256;x-amz-date",
		"X-Amz-Content-Sha256: "+unsignedTrailer)
	resign(t, r)
	if got := r.Header.Get("Authorization"); !strings.Contains(got, "SignedHeaders=host;x-amz-content-sha256;x-amz-date,") {
		t.Error(got)
	}
	r = toS3(t, "PUT", "b.s3.amazonaws.com/k", "a;host;x-amz-content-sha256;x-amz-date", "X-Amz-Content-Sha256: "+unsigned)
	q, err := Parse(r, exampleDay())
	if err == nil {
		key, _ := ParseCredentials([]byte(exampleKey))
		err = q.Sign(r, key, sha256.Sum256(nil), exampleDay(), time.Time{}, free)
	}
	if err == nil || !strings.Contains(err.Error(), "header a is signed, and not in the request") {
		t.Errorf("a header that is missing: %v", err)
	}
}

// TestSign_ReplacesTokens checks that a request has the session token of the access key, or none.
func TestSign_ReplacesTokens(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{exampleKey: "", exampleKey + ":real": "real", exampleKey + ":": ""} {
		for _, before := range []string{"", "other"} {
			signed := "host;x-amz-content-sha256;x-amz-date"
			if before != "" {
				signed += ";x-amz-security-token"
			}
			r := toS3(t, "GET", "b.s3.amazonaws.com/k", signed, "X-Amz-Content-Sha256: "+emptyHash)
			if before != "" {
				r.Header.Set(tokenName, before)
			}
			key, err := ParseCredentials([]byte(value))
			if err != nil {
				t.Fatal(err)
			}
			q, err := Parse(r, exampleDay())
			if err == nil {
				err = q.Sign(r, key, sha256.Sum256(nil), exampleDay(), time.Time{}, free)
			}
			has := strings.Contains(r.Header.Get("Authorization"), "x-amz-date;x-amz-security-token,")
			if err != nil || r.Header.Get(tokenName) != want || has != (want != "") {
				t.Errorf("%q, %q: %v, %v", value, before, r.Header, err)
			}
		}
	}
	for _, value := range []string{"", "a", ":", "a:", ":b", "a/b:c", "a b:c", "a,b:c"} {
		if _, err := ParseCredentials([]byte(value)); err == nil {
			t.Errorf("%q is an access key", value)
		}
	}
}

// FuzzRequest checks that what can be parsed and signed is signed for its own scope, with the access key alone, and
// that it can be parsed again.
func FuzzRequest(f *testing.F) {
	f.Add("AWS4-HMAC-SHA256 Credential=A/20130524/us-east-1/s3/aws4_request,SignedHeaders=host;x-amz-date,Signature=0", "", "/a%20b", "")
	f.Add("", "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=A%2F20130524%2Fr%2Fs%2Faws4_request&X-Amz-Date=20130524T000000Z"+
		"&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=0&X-Amz-Security-Token=t&a=%20+b;c", "//a/../b/", unsigned)
	f.Fuzz(func(t *testing.T, authorization, query, path, payload string) {
		u, err := url.ParseRequestURI("/" + path)
		if err != nil {
			return
		}
		u.RawQuery = query
		r := &http.Request{Method: "GET", Host: "a.example", URL: u, Header: http.Header{"X-Amz-Date": {"20130524T000000Z"}}}
		if authorization != "" {
			r.Header.Set("Authorization", authorization)
		}
		if payload != "" {
			r.Header.Set("X-Amz-Content-Sha256", payload)
		}
		q, err := Parse(r, exampleDay())
		if err != nil {
			return
		}
		key, _ := ParseCredentials([]byte(exampleKey + ":real"))
		if q.Sign(r, key, sha256.Sum256(nil), exampleDay(), time.Time{}, free) != nil {
			return
		}
		again, err := Parse(r, exampleDay())
		if err != nil || again.ID != "AKIAIOSFODNN7EXAMPLE" || again.Region != q.Region || again.Service != q.Service ||
			strings.Contains(r.URL.RawQuery+r.Header.Get("Authorization"), "wJalrXUtnFEMI") {
			t.Fatalf("%+v, %v; %v", again, err, r)
		}
	})
}

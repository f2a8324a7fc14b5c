package wallet

import (
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
)

const (
	accessKey = "AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY:FwoGZXIvYXdzEJrRealToken0123456789"
	instead   = "AKIAPLACEHOLDER22222:placeholder/placeholder+placeholder/0000"
)

// TestInto_SignsForAWS checks what an access key does to a request, and that answers are searched for its parts.
func TestInto_SignsForAWS(t *testing.T) {
	t.Parallel()
	item := grant.Item{Preset: "aws", Hosts: []string{"*.amazonaws.com"}}
	g, err := item.Grant("aws", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, &broker{value: accessKey, until: time.Minute}, grant.Issued{Grant: g, Placeholder: instead})
	stamp := time.Now().UTC().Format("20060102T150405Z")
	u := grant.Use{Port: 443, TLS: true, HTTP: policy.HTTPRequest{Method: "POST", Path: "/"}}
	if u.Host, err = policy.ParseHost("sqs.eu-west-1.amazonaws.com"); err != nil {
		t.Fatal(err)
	}
	u.Header = http.Header{"X-Amz-Date": {stamp}, "Authorization": {"AWS4-HMAC-SHA256 Credential=AKIAPLACEHOLDER22222/" + stamp[:8] +
		"/eu-west-1/sqs/aws4_request, SignedHeaders=host;x-amz-date, Signature=" + strings.Repeat("0", 64)}}
	c, _, no := w.Decide(u, nil)
	if no != nil || c == nil || c.Leaves() {
		t.Fatalf("%+v, %+v", c, no)
	}
	defer c.Done()
	if err := c.Fetch(t.Context(), u.Host, "POST", "/"); err != nil {
		t.Fatal(err)
	}
	r := &http.Request{Method: "POST", URL: &url.URL{Path: "/"}, Host: u.Host.String(), Header: u.Header.Clone(),
		Body: io.NopCloser(strings.NewReader("a=b")), ContentLength: 3}
	most, err := c.Whole(r)
	if err != nil || most != 8<<20 {
		t.Fatalf("%d, %v", most, err)
	}
	if err := c.Into(r, []byte("a=b"), nil); err != nil {
		t.Fatal(err)
	}
	if got := r.Header.Get("Authorization"); !strings.Contains(got, "=AKIAIOSFODNN7EXAMPLE/") ||
		!strings.Contains(got, ";x-amz-security-token,") || !strings.HasSuffix(accessKey, ":"+r.Header.Get("X-Amz-Security-Token")) {
		t.Errorf("%v", r.Header)
	}
	for _, part := range strings.Split(accessKey, ":") {
		for _, form := range []string{part, base64.StdEncoding.EncodeToString([]byte(part))} {
			found := ""
			if got := w.Live().Text("<"+form+">", func(g string) { found = g }); strings.Contains(got, form[:16]) || found != "aws" {
				t.Errorf("%s stays: %s", form, got)
			}
		}
	}
	// What was decided about must be what is signed.
	r.Header.Set("Authorization", strings.Replace(u.Header.Get("Authorization"), "AKIAPLACEHOLDER22222", "AKIAOTHEROTHER222222", 1))
	if err := c.Into(r, []byte("a=b"), nil); !fault.Is(err, fault.Denied) || fault.HintOf(err) == "" {
		t.Errorf("another ID: %v", err)
	}
	r.Header.Set("X-Amz-Date", "20200101T000000Z")
	if _, err := c.Whole(r); !fault.Is(err, fault.Denied) || strings.Contains(err.Error(), accessKey[21:40]) {
		t.Errorf("an old date: %v", err)
	}
}

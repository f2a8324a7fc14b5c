package sigv4

import (
	"crypto/sha256"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// vectors are requests of AWS's test suite with their signatures, in the header and in the query. Those whose targets
// are no URLs, or whose paths are not normalized, are left out: no such request is for a service other than S3.
type vectors struct {
	Vectors []struct{ Name, Token, Header, Query string }
}

// parsed returns the request that a text is, and its body.
func parsed(t *testing.T, text string) (*http.Request, string) {
	t.Helper()
	head, body, _ := strings.Cut(text, "\n\n")
	lines := strings.Split(head, "\n")
	first := strings.Split(lines[0], " ")
	path, query, _ := strings.Cut(first[1], "?")
	r := &http.Request{Method: first[0], Header: http.Header{}, URL: &url.URL{Path: path, RawQuery: query},
		ContentLength: int64(len(body))}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ":")
		if r.Header.Add(name, value); name == "Host" {
			r.Host = value
			r.Header.Del("Host")
		}
	}
	if body != "" {
		r.Body = io.NopCloser(strings.NewReader(body))
	}
	return r, body
}

var (
	signedBy = regexp.MustCompile(`AKIDEXAMPLE`)
	made     = regexp.MustCompile(`(Signature=)([0-9a-f]{64})`)
	tokens   = regexp.MustCompile(`&?X-Amz-Security-Token[:=][^\s&]*\n?`)
)

// TestSuite signs the requests of AWS's test suite, after another key signed them, and compares the signatures.
func TestSuite(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("testdata/suite.json")
	if err != nil {
		t.Fatal(err)
	}
	var all vectors
	if err := json.Unmarshal(b, &all); err != nil || len(all.Vectors) < 20 {
		t.Fatalf("%d vectors, %v", len(all.Vectors), err)
	}
	key, err := ParseCredentials([]byte("AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"))
	if err != nil {
		t.Fatal(err)
	}
	then := time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)
	for _, v := range all.Vectors {
		for form, text := range map[string]string{"header": v.Header, "query": v.Query} {
			want := made.FindStringSubmatch(text)[2]
			text = signedBy.ReplaceAllString(made.ReplaceAllString(text, "${1}"+strings.Repeat("0", 64)), "OTHER")
			text = tokens.ReplaceAllString(text, "")
			text = strings.ReplaceAll(text, ";x-amz-security-token", "")
			r, body := parsed(t, text)
			key.token = nil
			if v.Token != "" {
				key.token = []byte(v.Token)
			}
			now := then.Add(14 * time.Minute)
			if form == "query" {
				now = then.Add(50 * time.Minute)
			}
			q, err := Parse(r, now)
			if err != nil || q.ID != "OTHER" || q.Region != "us-east-1" || q.Service != "service" {
				t.Errorf("%s, %s: %+v, %v", v.Name, form, q, err)
				continue
			}
			if err := q.Sign(r, key, sha256.Sum256([]byte(body)), now, time.Time{}, nil); err != nil {
				t.Errorf("%s, %s: %v", v.Name, form, err)
				continue
			}
			got := made.FindStringSubmatch(r.Header.Get("Authorization") + "&" + r.URL.RawQuery)
			if got == nil || got[2] != want {
				t.Errorf("%s, %s: %v, want %s: %s", v.Name, form, got, want, text)
			}
		}
	}
}

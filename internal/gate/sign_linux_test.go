//go:build linux && (amd64 || arm64)

package gate

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/gate/sigv4test"
	"github.com/coppice-dev/coppice/internal/gate/wallet"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
)

const (
	realID, realKey = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	realToken       = "FwoGZXIvYXdzEJr+RealToken/0123456789"
	insideID        = "AKIAPLACEHOLDER22222"
	insideKey       = "placeholder/placeholder+placeholder/0000"
)

// cloud is AWS: it verifies requests, and keeps the content of what it got.
type cloud struct {
	*sandbox
	t  *testing.T
	ca string

	mu   sync.Mutex
	key  sigv4test.Key     // guarded by mu
	got  map[string]string // content by method and path; guarded by mu
	errs []error           // guarded by mu
}

// newCloud returns a sandbox with an access key for AWS.
func newCloud(t *testing.T, value string, sites ...grant.SiteItem) *cloud {
	t.Helper()
	hosts := []string{"s3.amazonaws.com", "bucket.s3.amazonaws.com", "s3.us-east-1.amazonaws.com", "bucket.s3.us-east-1.amazonaws.com", "dynamodb.us-east-1.amazonaws.com",
		"s3.eu-west-1.amazonaws.com", "iam.amazonaws.com", "api.execute-api.us-east-1.amazonaws.com", "free.example"}
	var rules []policy.Rule
	for _, host := range hosts {
		rules = append(rules, httpRule(t, host+":443", func(r *policy.Rule) { r.Paths = []string{"/*"} }))
	}
	h := newWebHosts(t, Rules(policy.Network{Mode: policy.NetRules, Allow: rules}), hosts...)
	parts := append(strings.SplitN(value, ":", 3), "")
	c := &cloud{t: t, key: sigv4test.Key{ID: parts[0], Secret: parts[1], Token: parts[2]}, got: map[string]string{}}
	for _, host := range hosts {
		h.mux.HandleFunc(host+"/", c.serve)
	}
	c.sandbox, c.ca = h.web(t, veth)
	item := grant.Item{Preset: "aws", Sites: sites}
	one, err := item.Grant("aws", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c.wallet.Connect(&store{values: map[string]string{"aws": value}})
	err = c.SetSecrets(wallet.Grants{Sandbox: "box", Issued: []grant.Issued{{Grant: one, Placeholder: insideID + ":" + insideKey}}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// serve verifies a request. It answers as S3 does to what the tests ask for.
func (c *cloud) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		body, err = sigv4test.Verify(r, body, c.key)
	}
	if err != nil {
		c.errs = append(c.errs, fmt.Errorf("%s %s: %w", r.Method, r.RequestURI, err))
		http.Error(w, "<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>"+c.key.ID+"</AWSAccessKeyId></Error>", http.StatusForbidden)
		return
	}
	c.got[r.Method+" "+r.URL.Path] += string(body)
	w.Header().Set("ETag", `"e"`)
	switch q := r.URL.Query(); {
	case r.Method == http.MethodPost && q.Has("uploads"):
		io.WriteString(w, "<InitiateMultipartUploadResult><UploadId>u+/=1</UploadId></InitiateMultipartUploadResult>")
	case r.Method == http.MethodPost && q.Has("uploadId"):
		io.WriteString(w, "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")
	case strings.HasPrefix(r.Host, "dynamodb"):
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		io.WriteString(w, `{"TableNames":["t"]}`)
	case r.Method == http.MethodGet:
		http.ServeContent(w, r, "x", time.Time{}, strings.NewReader("content of "+r.URL.Path+" for "+c.key.ID))
	}
}

// python runs a script with the given access key.
func (c *cloud) python(id, key, script string) string {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "script.py")
	const begin = `import botocore.session, botocore.config, sys, io
id, key, ca = sys.argv[1:4]
session = botocore.session.Session()
def client(service, region="us-east-1", **config):
    return session.create_client(service, region_name=region, aws_access_key_id=id, aws_secret_access_key=key, verify=ca,
        config=botocore.config.Config(retries={"max_attempts": 0}, **config))
`
	if err := os.WriteFile(file, []byte(begin+script), 0o644); err != nil {
		c.t.Fatal(err)
	}
	out, err := c.do("run", nil, "env", "-i", "PATH=/usr/bin:/bin", "HOME="+c.t.TempDir(), "AWS_EC2_METADATA_DISABLED=true",
		"/usr/bin/python3", file, id, key, c.ca)
	if err != nil {
		return string(out) + err.Error()
	}
	return string(out)
}

func needBotocore(t *testing.T) {
	t.Helper()
	if err := exec.Command("/usr/bin/python3", "-c", "import botocore").Run(); err != nil {
		t.Skip("needs python3-botocore: to sign requests")
	}
}

// TestGrants_SignForAWS has botocore sign requests with a placeholder, and a server verify that they arrive with the
// signature of the access key.
func TestGrants_SignForAWS(t *testing.T) {
	t.Parallel()
	needBotocore(t)
	for name, value := range map[string]string{"a long-term key": realID + ":" + realKey,
		"a session": "ASIA" + realID[4:] + ":" + realKey + ":" + realToken} {
		c := newCloud(t, value)
		out := c.python(insideID, insideKey, `
s3 = client("s3", s3={"addressing_style": "path"})
s3.put_object(Bucket="bucket", Key="plain", Body=b"plain content")
s3.put_object(Bucket="bucket", Key="odd/a b+c(1)='*~é/x", Body=b"odd content")
s3.put_object(Bucket="bucket", Key="trailer", Body=io.BytesIO(b"trailer content"), ChecksumAlgorithm="CRC32")
client("s3", s3={"payload_signing_enabled": True, "addressing_style": "path"}).put_object(Bucket="bucket", Key="hashed", Body=b"hashed content")
client("s3", s3={"addressing_style": "virtual"}).put_object(Bucket="bucket", Key="virtual", Body=b"virtual content")
print(s3.get_object(Bucket="bucket", Key="plain", Range="bytes=0-6")["Body"].read().decode())
print(s3.get_object(Bucket="bucket", Key="plain")["Body"].read().decode())
up = s3.create_multipart_upload(Bucket="bucket", Key="parts", Metadata={"a": "b  c"})["UploadId"]
part = [s3.upload_part(Bucket="bucket", Key="parts", UploadId=up, PartNumber=n, Body=b"part%d" % n)["ETag"] for n in (1, 2)]
s3.complete_multipart_upload(Bucket="bucket", Key="parts", UploadId=up, MultipartUpload={"Parts": [{"ETag": e, "PartNumber": i + 1} for i, e in enumerate(part)]})
s3.delete_object(Bucket="bucket", Key="plain")
print(client("dynamodb").list_tables(Limit=7)["TableNames"])
print("url", client("s3", signature_version="s3v4", s3={"addressing_style": "path"}).generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "a b"}, ExpiresIn=3600))
`)
		c.mu.Lock()
		for _, err := range c.errs {
			t.Errorf("%s: %v", name, err)
		}
		for path, want := range map[string]string{"PUT /bucket/plain": "plain content", "PUT /bucket/odd/a b+c(1)='*~é/x": "odd content",
			"PUT /bucket/trailer": "trailer content", "PUT /bucket/hashed": "hashed content", "PUT /virtual": "virtual content",
			"PUT /bucket/parts": "part1part2", "POST /": `{"Limit": 7}`} {
			if got := c.got[path]; got != want {
				t.Errorf("%s: %s: %q, want %q", name, path, got, want)
			}
		}
		c.mu.Unlock()
		_, link, _ := strings.Cut(out, "url ")
		id, _, _ := strings.Cut(value, ":")
		if !strings.HasPrefix(out, "content\ncontent of /bucket/plain for "+insideID+"\n['t']\n") || strings.Contains(out, id) {
			t.Errorf("%s: %s", name, out)
		}
		got := string(c.must(t, "run", nil, "curl", "-sS", "--cacert", c.ca, strings.TrimSpace(link)))
		if got != "content of /bucket/a b for "+insideID {
			t.Errorf("%s: presigned: %s; %v", name, got, c.errs)
		}
		c.wait(t, "a use", func(e Event) bool { return e.Kind == KindRequest && strings.Join(e.Grants, " ") == "aws" })
	}
}

// TestGrants_SignChunks has a client send chunks whose signatures are made again.
func TestGrants_SignChunks(t *testing.T) {
	t.Parallel()
	c := newCloud(t, realID+":"+realKey)
	zeros := strings.Repeat("0", 64)
	send := func(kind, body string, flags ...string) string {
		stamp := time.Now().UTC().Format("20060102T150405Z")
		file := filepath.Join(t.TempDir(), "body")
		if err := os.WriteFile(file, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := c.do("run", nil, append([]string{"curl", "-sS", "-w", "%{http_code}", "--cacert", c.ca, "--http1.1", "-T", file,
			"https://s3.us-east-1.amazonaws.com/bucket/chunks", "-H", "X-Amz-Date: " + stamp, "-H", "X-Amz-Content-Sha256: " + kind,
			"-H", "Content-Encoding: aws-chunked", "-H", "Authorization: AWS4-HMAC-SHA256 Credential=" + insideID + "/" + stamp[:8] +
				"/us-east-1/s3/aws4_request, SignedHeaders=content-encoding;host;x-amz-content-sha256;x-amz-date, Signature=" + zeros},
			flags...)...)
		if err != nil {
			return string(out) + err.Error()
		}
		return string(out)
	}
	chunk := func(n int) string {
		return fmt.Sprintf("%x;chunk-signature=%s\r\n%s\r\n", n, zeros, strings.Repeat("x", n))
	}
	last := "0;chunk-signature=" + zeros + "\r\n"
	const streaming = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	body := chunk(1<<20) + chunk(100_000) + chunk(1)
	for _, x := range []struct{ kind, body, want string }{
		{streaming, body + last + "\r\n", "200"},
		{streaming + "-TRAILER", body + last + "x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:" + zeros + "\r\n\r\n", "200"},
		{streaming, last + "\r\n", "200"},
		{streaming, chunk(1<<20+1) + last + "\r\n", "403"},
		{streaming, chunk(10) + chunk(10), "403"},
		{streaming, "no chunk", "403"},
		{"STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", body + last + "\r\n", "403"},
	} {
		for _, flags := range [][]string{{}, {"-H", "Transfer-Encoding: chunked", "-H", "Expect:"}} {
			// A client that still sends may not see the refusal.
			if out := send(x.kind, x.body, flags...); strings.HasSuffix(out, "200") != (x.want == "200") {
				t.Errorf("%s, %d bytes, %q: %.300s", x.kind, len(x.body), flags, out)
			}
		}
	}
	c.denied(t, TCP, "the signed chunks of the body: a chunk is longer than 1024 KiB")
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.got["PUT /bucket/chunks"]); n != 4*(1<<20+100_001) {
		t.Errorf("%d bytes arrived", n)
	}
	for _, err := range c.errs {
		if !strings.Contains(err.Error(), "EOF") { // of requests that were cut
			t.Error(err)
		}
	}
}

// TestGrants_SignOnlyWhatTheyAllow checks requests that the gate does not sign.
func TestGrants_SignOnlyWhatTheyAllow(t *testing.T) {
	t.Parallel()
	needBotocore(t)
	c := newCloud(t, realID+":"+realKey, grant.SiteItem{In: "sigv4", Regions: []string{"us-east-1"}})
	for script, want := range map[string]string{
		`client("s3", "eu-west-1").list_buckets()`: "does not allow service s3 in region eu-west-1",
		`client("iam").list_users()`:               "does not allow service iam",
		`session.create_client("s3", region_name="us-east-1", endpoint_url="https://iam.amazonaws.com", aws_access_key_id=id, aws_secret_access_key=key, verify=ca).list_buckets()`: "host iam.amazonaws.com is not one of service s3",
		`session.create_client("s3", region_name="us-east-1", endpoint_url="https://free.example", aws_access_key_id=id, aws_secret_access_key=key, verify=ca).list_buckets()`:      "grant aws is not for free.example",
	} {
		out := c.python(insideID, insideKey, "try:\n    "+script+"\nexcept Exception as e:\n    print(e)\n")
		e := c.wait(t, want, func(e Event) bool { return e.Verdict == Deny && strings.Contains(e.Reason, want) })
		if e.Status != http.StatusForbidden || !strings.Contains(out, "rror") {
			t.Errorf("%s: %+v; %s", script, e, out)
		}
	}
	if len(c.got)+len(c.errs) > 0 {
		t.Errorf("requests arrived: %v %v", c.got, c.errs)
	}
	// Others are signed, by clients that are not of AWS as well.
	sign := []string{"curl", "-sS", "--path-as-is", "--cacert", c.ca, "--aws-sigv4", "aws:amz:us-east-1:execute-api", "--user", insideID + ":" + insideKey,
		"-w", "%{http_code}"}
	for _, path := range []string{"/prod/items", "/prod/a%20b"} {
		out := string(c.must(t, "run", nil, append(sign, "https://api.execute-api.us-east-1.amazonaws.com"+path, "-d", "a body")...))
		if out != "200" || c.got["POST "+strings.ReplaceAll(path, "%20", " ")] != "a body" {
			t.Errorf("%s: %s %v", path, out, c.errs)
		}
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, 8<<20+1), 0o644); err != nil {
		t.Fatal(err)
	}
	// A client that still sends may not see the refusal.
	_, _ = c.do("run", nil, append(sign, "https://api.execute-api.us-east-1.amazonaws.com/x", "--data-binary", "@"+large)...)
	if e := c.denied(t, TCP, "the body is longer than 8 MiB"); e.Status != http.StatusRequestEntityTooLarge || c.got["POST /x"] != "" {
		t.Errorf("a large body: %+v", e)
	}
}

package store

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Bounds on the answers of a server.
const (
	callTime  = 20 * time.Second
	maxAnswer = 1 << 20
	maxToken  = 4 << 10
)

// client sends requests to Vault's API.
type client struct {
	base      string // the address, without a slash at its end
	namespace string
	http      *http.Client
}

// answer is what Coppice reads of an answer.
type answer struct {
	LeaseID       string          `json:"lease_id"`
	LeaseDuration int64           `json:"lease_duration"` // seconds
	Data          json.RawMessage `json:"data"`
	Auth          auth            `json:"auth"`
}

// auth is the part of an answer that has a token.
type auth struct {
	Token     string `json:"client_token"`
	Seconds   int64  `json:"lease_duration"`
	Renewable bool   `json:"renewable"`
}

// lookedUp returns the duration of a token that is looked up.
func lookedUp(data json.RawMessage) (auth, error) {
	var d struct {
		TTL       int64 `json:"ttl"`
		Renewable bool  `json:"renewable"`
	}
	if json.Unmarshal(data, &d) != nil {
		return auth{}, errAnswer()
	}
	return auth{Seconds: d.TTL, Renewable: d.Renewable}, nil
}

// errAnswer is the error of an answer that Vault does not give. It does not quote the answer.
func errAnswer() error {
	return fault.New(fault.Unavailable, "the server does not answer as Vault").
		WithHint("check the address: curl ADDRESS/v1/sys/health")
}

func newClient(o VaultOptions) (*client, error) {
	u, err := url.Parse(o.Address)
	if err != nil || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" ||
		u.Fragment != "" {
		return nil, fault.New(fault.Invalid, "invalid address of Vault: must be https://HOST:PORT")
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme != "https" && (u.Scheme != "http" || ip == nil || !ip.IsLoopback()) {
		return nil, fault.New(fault.Invalid, "invalid address of Vault %s: must be https, except on a loopback address", u)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		pem, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, fault.Wrap(err, "read the certificates of Vault")
		}
		if conf.RootCAs = x509.NewCertPool(); !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fault.New(fault.Invalid, "%s has no certificate in PEM", o.CA)
		}
	}
	return &client{base: u.Scheme + "://" + u.Host, namespace: o.Namespace, http: &http.Client{
		// A redirect would carry the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       callTime,
		Transport: &http.Transport{
			TLSClientConfig: conf, ForceAttemptHTTP2: true, MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: time.Minute,
			DisableCompression: true, // of a small answer that could become a large one
		},
	}}, nil
}

// do sends a request. Its errors contain neither the request nor the answer, which may have values and tokens.
func (c *client) do(ctx context.Context, method, path, token string, body map[string]any) (answer, error) {
	var sent io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return answer{}, errAnswer()
		}
		sent = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+"/v1/"+escape(path), sent)
	if err != nil {
		return answer{}, fault.New(fault.Invalid, "invalid request to Vault")
	}
	req.Header.Set("X-Vault-Request", "true")
	if token != "" {
		req.Header.Set("X-Vault-Token", token)
	}
	if c.namespace != "" {
		req.Header.Set("X-Vault-Namespace", c.namespace)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return answer{}, c.unreachable(ctx, err)
	}
	defer res.Body.Close()
	if err := c.status(res.StatusCode); err != nil || res.StatusCode == http.StatusNoContent {
		return answer{}, err
	}
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return answer{}, errAnswer()
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	defer wipe(b)
	switch {
	case err != nil:
		return answer{}, c.unreachable(ctx, err)
	case len(b) > maxAnswer:
		return answer{}, fault.New(fault.TooLarge, "the answer of Vault is larger than %d KiB", maxAnswer>>10)
	}
	var a answer
	if json.Unmarshal(b, &a) != nil {
		return answer{}, errAnswer()
	}
	return a, nil
}

// unreachable returns the error of a request without an answer.
func (c *client) unreachable(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fault.Wrap(cause, "wait for Vault")
	}
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		return fault.New(fault.Timeout, "Vault at %s did not answer in time", c.base)
	}
	return fault.New(fault.Unavailable, "cannot reach Vault at %s: %s", c.base, why(err)).
		WithHint("check the address and the network: curl %s/v1/sys/health", c.base)
}

// why says in fixed words why a connection failed: texts of net/http, and names in certificates, may be chosen by a
// server that has received a token.
func why(err error) string {
	var untrusted *tls.CertificateVerificationError
	var name *net.DNSError
	var number syscall.Errno
	switch {
	case errors.As(err, &untrusted):
		return "its certificate is not trusted"
	case errors.As(err, &name):
		return "its name is not known"
	case errors.As(err, &number):
		return number.Error()
	}
	return "the connection broke"
}

// status returns the error of a status code.
func (c *client) status(code int) error {
	switch {
	case code == http.StatusOK, code == http.StatusNoContent:
		return nil
	case code >= 300 && code < 400:
		return fault.New(fault.Denied, "Vault at %s redirects to another address, which is not followed", c.base).
			WithHint("set the address of the active server")
	case code == http.StatusNotFound:
		return fault.New(fault.NotFound, "Vault has no such secret")
	case code == http.StatusForbidden, code == http.StatusUnauthorized:
		return fault.New(fault.Denied, "Vault refused it").
			WithHint("give the role a policy that may read the path; see what it has: vault token capabilities PATH")
	case code == http.StatusServiceUnavailable:
		return fault.New(fault.Unavailable, "Vault at %s is sealed, or down for maintenance", c.base).
			WithHint("unseal it: vault operator unseal")
	case code == http.StatusInternalServerError: // also Vault's answer to a wrong secret id
		return fault.New(fault.Unavailable, "Vault at %s failed (status %d)", c.base, code).
			WithHint("see its log; to log in by AppRole, also check the secret id")
	case code == http.StatusTooManyRequests, code >= 500:
		return fault.New(fault.Unavailable, "Vault at %s failed (status %d)", c.base, code).
			WithHint("see its log, and try again")
	}
	return fault.New(fault.Invalid, "Vault at %s rejected the request (status %d)", c.base, code)
}

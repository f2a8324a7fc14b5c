// Package client talks with the broker of a home, the process that holds the values of secrets: HTTP with JSON over the
// socket ControlSocket. The command line stores secrets with it, and the daemon registers the grants of sandboxes. No
// call returns a value. Start is on Linux only. It imports fault, grant, program and unixsock.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
)

// The broker's sockets, relative to the home. Both accept processes of the home's owner only.
const (
	LineSocket    = "run/broker-line.sock" // of gates: see package line
	ControlSocket = "run/broker.sock"      // of Client
)

// Secret describes a secret. It has no part of the value but its length.
type Secret struct {
	Name        string    `json:"name"`
	Kind        string    `json:"kind,omitempty"` // a grant.Kind
	From        string    `json:"from"`           // as given to Set, such as age or file:/PATH; env:NAME is kept as age
	Length      int       `json:"length,omitempty"`
	Fingerprint string    `json:"fingerprint,omitempty"` // equal for equal values of one home
	Created     time.Time `json:"created,omitzero"`
	Rotated     time.Time `json:"rotated,omitzero"`
	Grants      int       `json:"grants"` // that are registered
	// Problem says why the secret cannot be read, and Hint what to do; both are "" if it can. Only its Name and Grants
	// are known then. Secrets that are references are opened by Test, not by List.
	Problem string `json:"problem,omitempty"`
	Hint    string `json:"hint,omitempty"`
}

// Registration is what a sandbox may ask the broker for.
type Registration struct {
	Sandbox string    `json:"sandbox"`
	Ticket  []byte    `json:"ticket"` // 32 random bytes, which authorize the sandbox's keeper to open a line
	Grants  []Granted `json:"grants"`
}

// Granted is a grant of a sandbox.
type Granted struct {
	Name   string    `json:"name"`
	Secret string    `json:"secret"`
	Hosts  []string  `json:"hosts"`          // patterns, as in a grant.Item
	Until  time.Time `json:"until,omitzero"` // zero: it does not expire
	// User makes the broker sign logins of this user over SSH with the secret, which it then does not give.
	User string `json:"user,omitempty"`
}

// Status describes a running broker.
type Status struct {
	Boot string `json:"boot"` // random for each process: another one has no registrations
	PID  int    `json:"pid"`
}

// SetRequest is the body of a request of Client.Set.
type SetRequest struct {
	From  string   `json:"from,omitempty"`
	Kind  string   `json:"kind,omitempty"`
	Value []byte   `json:"value,omitempty"`
	Env   []string `json:"env,omitempty"`
}

// TestRequest is the body of a request of Client.Test.
type TestRequest struct {
	Env []string `json:"env,omitempty"`
}

// Problem is the body of an answer that is an error.
type Problem struct {
	Kind    string `json:"kind"` // a fault.Kind
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// Client calls the broker of a home. It is safe for concurrent use. Every method returns Unavailable if none runs.
type Client struct {
	home string
	env  []string // nil: not known
}

// Dial returns the client of the broker of a home. It does not connect: each call does.
func Dial(home string) *Client { return &Client{home: home} }

// With returns a client whose calls of Set and Test are those of a program with the environment env.
func (c *Client) With(env []string) *Client { return &Client{c.home, env} }

// Set stores a secret, or replaces it, in which case gates get the new value with their next request. from is a source
// as in package store, or "" for age; kind is a grant.Kind, or "" for that of the value's shape. value is for age only.
// For env:NAME, Set reads the variable in the environment of With, and stores its value as age does. Other sources are
// read once, and Set fails if that fails. The environment of With becomes that of commands, here and for gates, and has
// what the programs of Vault read from it: VAULT_ADDR, VAULT_NAMESPACE, VAULT_CACERT and VAULT_TOKEN, or VAULT_ROLE_ID
// and VAULT_SECRET_ID. Without With, the environment is that with which the broker was started.
func (c *Client) Set(ctx context.Context, name, from, kind string, value []byte) (Secret, error) {
	r := SetRequest{From: from, Kind: kind, Value: value, Env: c.env}
	if variable, ok := strings.CutPrefix(from, "env:"); ok {
		text, ok := c.variable(variable)
		if !ok {
			return Secret{}, fault.New(fault.NotFound, "variable %.80q is not set", variable).
				WithHint("set it in your shell: export NAME=...")
		}
		r.From, r.Value = "age", []byte(strings.TrimSuffix(text, "\n"))
	}
	var s Secret
	err := c.call(ctx, "PUT", secretPath(name, ""), r, &s)
	return s, err
}

// variable returns a variable of the environment of With.
func (c *Client) variable(name string) (string, bool) {
	for _, kv := range c.env {
		if text, ok := strings.CutPrefix(kv, name+"="); ok {
			return text, true
		}
	}
	return "", false
}

// List returns all secrets, sorted by name.
func (c *Client) List(ctx context.Context) ([]Secret, error) {
	var all []Secret
	err := c.call(ctx, "GET", "/v1/secrets", nil, &all)
	return all, err
}

// Remove removes a secret. Unless force is true, it returns Conflict while a grant of it is registered; the message
// names the sandboxes.
func (c *Client) Remove(ctx context.Context, name string, force bool) error {
	path := secretPath(name, "")
	if force {
		path += "?force=true"
	}
	return c.call(ctx, "DELETE", path, nil, nil)
}

// Test opens a secret, as a gate's request would, and describes it.
func (c *Client) Test(ctx context.Context, name string) (Secret, error) {
	var s Secret
	err := c.call(ctx, "POST", secretPath(name, "/test"), TestRequest{Env: c.env}, &s)
	return s, err
}

// Shape opens a secret, and returns the shape of its value. It has the kind that Set was given, if any. NotFound has a
// hint how to store the secret.
func (c *Client) Shape(ctx context.Context, secret string) (grant.Shape, error) {
	var s grant.Shape
	err := c.call(ctx, "GET", secretPath(secret, "/shape"), nil, &s)
	return s, err
}

// Register replaces the registration of a sandbox. Lines under the same ticket stay open, and drop the values of grants
// that are gone or were changed; lines under another ticket are closed.
func (c *Client) Register(ctx context.Context, r Registration) error {
	return c.call(ctx, "PUT", "/v1/registrations/"+url.PathEscape(r.Sandbox), r, nil)
}

// Withdraw removes the registration of a sandbox, closes its lines, and revokes the leases of its secrets. It returns
// nil for a sandbox that is not registered.
func (c *Client) Withdraw(ctx context.Context, sandbox string) error {
	return c.call(ctx, "DELETE", "/v1/registrations/"+url.PathEscape(sandbox), nil, nil)
}

// secretPath returns the path of a secret in the API.
func secretPath(name, rest string) string { return "/v1/secrets/" + url.PathEscape(name) + rest }

// Status describes the running broker.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	err := c.call(ctx, "GET", "/v1/status", nil, &s)
	return s, err
}

// maxAnswer is the maximum size of an answer, in bytes.
const maxAnswer = 4 << 20

// call sends a request with body as JSON, unless it is nil, and parses the answer into answer, unless that is nil.
func (c *Client) call(ctx context.Context, method, path string, body, answer any) error {
	var sent io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return fault.New(fault.Internal, "encode a request to the broker of secrets")
		}
		defer clear(b)
		sent = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://broker"+path, sent)
	if err != nil {
		return fault.Wrap(err, "call the broker of secrets")
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: c.dial}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	if err != nil {
		if ctx.Err() != nil {
			return fault.Wrap(ctx.Err(), "wait for the broker of secrets")
		}
		return fault.New(fault.Unavailable, "cannot reach the broker of secrets").Because(err).
			WithHint("start it, and see whether the secrets can be read: coppice secret ls")
	}
	defer res.Body.Close()
	dec := json.NewDecoder(io.LimitReader(res.Body, maxAnswer))
	if res.StatusCode != http.StatusOK {
		var p Problem
		if dec.Decode(&p) != nil || p.Kind == "" {
			p = Problem{Kind: string(fault.Unavailable), Message: "the broker of secrets does not answer as one"}
		}
		return &fault.Error{Kind: fault.Kind(p.Kind), Message: p.Message, Hint: p.Hint}
	}
	if answer == nil {
		return nil
	}
	return fault.Wrap(dec.Decode(answer), "read the answer of the broker of secrets")
}

func (c *Client) dial(context.Context, string, string) (net.Conn, error) {
	return dial(filepath.Join(c.home, ControlSocket))
}

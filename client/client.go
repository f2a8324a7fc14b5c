// Package client talks to a coppice daemon over its Unix socket, or over TCP with a token. It works on every system
// that Go supports; only the daemon needs Linux. It imports nothing of Coppice but client/wire.
//
// Errors that the daemon returned are of type *Error, with a kind to branch on and a hint. A daemon that cannot be
// reached is an *Error of kind KindUnavailable.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// Error is an error that the daemon returned, or a failure to reach it.
type Error struct {
	Kind    string // one of the Kind constants, or one of a newer daemon
	Message string
	Hint    string // how to fix it; may be ""
	Err     error  // the cause on the client's side; may be nil
}

// The kinds of an Error.
const (
	KindInternal    = "internal"
	KindInvalid     = "invalid"
	KindNotFound    = "not_found"
	KindAmbiguous   = "ambiguous"
	KindExists      = "exists"
	KindConflict    = "conflict"
	KindUnsupported = "unsupported"
	KindDenied      = "denied"
	KindNoSpace     = "no_space"
	KindReadOnly    = "read_only"
	KindCorrupt     = "corrupt"
	KindVersion     = "version"
	KindUnavailable = "unavailable"
	KindCancelled   = "cancelled"
	KindTimeout     = "timeout"
	KindTooLarge    = "too_large"
)

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.Err }

// IsKind reports whether err is an *Error of that kind.
func IsKind(err error, kind string) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == kind
}

// Options configures a Client. One of Host, Socket and Dial must be set; Host takes precedence.
type Options struct {
	// Host is the address of the daemon on TCP, as https://HOST:PORT or http://HOST:PORT; a path is the prefix of a
	// reverse proxy. Redirects are not followed.
	Host string
	// Token is the bearer token for Host. Over http:// it is sent in the clear.
	Token string
	// TLS configures the certificate authorities for an https:// Host; nil uses the system's.
	TLS *tls.Config
	// Socket is the path of the daemon's socket. On Linux it may be longer than the 107 bytes of a sockaddr_un.
	Socket string
	// Dial makes a connection; nil dials Socket. It is called for every connection, possibly from several goroutines,
	// and may start the daemon.
	Dial func(ctx context.Context) (net.Conn, error)
	// Patience is how long Exec and Attach try to reconnect after a lost connection; 0 means 30 s, a negative value
	// not at all.
	Patience time.Duration
}

// expectTime is how long an upload waits for "100 Continue", so that the body of a refused upload is not sent.
const expectTime = 2 * time.Second

// Client is a client of one daemon. It connects on demand and is safe for concurrent use.
type Client struct {
	opt  Options
	http *http.Client // a new connection for each call
	kept *http.Client // kept-alive connections, for calls that are safe to repeat; the same as http on a socket
	to   *remote      // nil: use Dial
	bad  error        // invalid options; returned by every call
}

// New returns a Client. It does not connect; invalid options are returned by the first call.
func New(opt Options) *Client {
	if opt.Patience == 0 {
		opt.Patience = 30 * time.Second
	}
	if opt.Host != "" {
		to, err := newRemote(opt)
		if err != nil {
			return &Client{opt: opt, http: &http.Client{}, kept: &http.Client{}, bad: err}
		}
		opt.Dial = to.dial
		// A request on a kept-alive connection may be sent twice, so only calls that are safe to repeat use one.
		return &Client{opt: opt, to: to, http: stays(to.transport(false)), kept: stays(to.transport(true))}
	}
	if opt.Dial == nil {
		socket := opt.Socket
		opt.Dial = func(ctx context.Context) (net.Conn, error) { return DialSocket(ctx, socket) }
	}
	cl := stays(&http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := opt.Dial(ctx)
			if err != nil {
				return nil, err
			}
			return answered{conn}, nil
		},
		// A kept-alive connection may belong to a daemon that has exited; a call on it fails, and it is unknown
		// whether it was carried out.
		DisableKeepAlives:     true,
		DisableCompression:    true,
		ExpectContinueTimeout: expectTime,
		WriteBufferSize:       256 << 10,
		ReadBufferSize:        256 << 10,
	})
	return &Client{opt: opt, http: cl, kept: cl}
}

// stays returns an HTTP client that follows no redirects: the token is for one daemon.
func stays(tr *http.Transport) *http.Client {
	return &http.Client{Transport: tr,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Close closes idle connections. Calls in progress continue.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.kept.CloseIdleConnections()
}

// List returns sandboxes, by name: all, or those that match filters. A filter is KEY=VALUE with the keys
// "label" (whose value is KEY or KEY=VALUE), "name" (a glob pattern), "state", "tier", "driver" and "origin".
// A sandbox matches if it satisfies a filter of each key; different keys of labels count as different keys.
// An unknown key or value is KindInvalid.
func (c *Client) List(ctx context.Context, filters ...string) ([]wire.Sandbox, error) {
	var res wire.ListResult
	path := "/v1/sandboxes"
	if len(filters) > 0 {
		path += "?" + url.Values{"filter": filters}.Encode()
	}
	err := c.call(ctx, http.MethodGet, path, nil, &res)
	return res.Sandboxes, err
}

// Daemon returns the state of the daemon.
func (c *Client) Daemon(ctx context.Context) (wire.DaemonStatus, error) {
	return get[wire.DaemonStatus](ctx, c, "/v1/status")
}

// Probe reports what the daemon's host supports.
func (c *Client) Probe(ctx context.Context) (wire.ProbeReport, error) {
	return get[wire.ProbeReport](ctx, c, "/v1/probe")
}

// Create creates a sandbox. If req.From is an archive, req.Tar is sent with the request. progress may be nil; it is
// called from the calling goroutine.
func (c *Client) Create(
	ctx context.Context, req wire.CreateRequest, progress func(wire.Progress),
) (wire.Sandbox, error) {
	var res wire.Sandbox
	if req.From.Kind != wire.SourceTar {
		return res, c.long(ctx, "/v1/sandboxes", req, progress, &res)
	}
	if req.Tar == nil {
		return res, &Error{Kind: KindInvalid, Message: "no archive was given"}
	}
	head, err := json.Marshal(req)
	if err != nil {
		return res, fmt.Errorf("encode the request: %w", err)
	}
	pr, pw := io.Pipe()
	defer pr.Close()
	form := multipart.NewWriter(pw)
	go func() {
		err := form.WriteField("request", string(head))
		if err == nil {
			var part io.Writer
			if part, err = form.CreateFormFile("tar", "tar"); err == nil {
				_, err = io.CopyBuffer(part, req.Tar, make([]byte, 256<<10))
			}
		}
		if err == nil {
			err = form.Close()
		}
		_ = pw.CloseWithError(err) // the reader gets it; ends when pr is closed
	}()
	return res, c.longBody(ctx, "/v1/sandboxes", form.FormDataContentType(), pr, progress, &res)
}

// SetLife changes the lifetime, the idle timeout and the labels of a sandbox.
func (c *Client) SetLife(ctx context.Context, name string, req wire.LifeRequest) (wire.Sandbox, error) {
	var res wire.Sandbox
	err := c.call(ctx, http.MethodPatch, at(name), req, &res)
	return res, err
}

// Status returns the state of one sandbox.
func (c *Client) Status(ctx context.Context, name string) (wire.StatusResult, error) {
	return get[wire.StatusResult](ctx, c, at(name))
}

// Execs lists the running commands of a sandbox, oldest first.
func (c *Client) Execs(ctx context.Context, name string) ([]wire.ExecInfo, error) {
	res, err := get[wire.ExecsResult](ctx, c, at(name)+"/execs")
	return res.Execs, err
}

// Policy returns the policy of a sandbox.
func (c *Client) Policy(ctx context.Context, name string) (wire.PolicyResult, error) {
	return get[wire.PolicyResult](ctx, c, at(name)+"/policy")
}

// Remove removes a sandbox and the parts of its history that no other sandbox uses. Without force, a sandbox with
// running commands is refused.
func (c *Client) Remove(ctx context.Context, name string, force bool) error {
	p := at(name)
	if force {
		p += "?force=true"
	}
	return c.call(ctx, http.MethodDelete, p, nil, nil)
}

// Start starts a stopped sandbox, and its supervised command if it has one. It does nothing for a sandbox that runs.
func (c *Client) Start(ctx context.Context, name string) (wire.StatusResult, error) {
	return post[wire.StatusResult](ctx, c, at(name)+"/start", nil)
}

// Stop stops all processes of a sandbox.
func (c *Client) Stop(ctx context.Context, name string) (wire.StopResult, error) {
	return post[wire.StopResult](ctx, c, at(name)+"/stop", nil)
}

// Pause pauses all processes of a sandbox until Resume, even if the daemon exits.
func (c *Client) Pause(ctx context.Context, name string) (wire.Sandbox, error) {
	return post[wire.Sandbox](ctx, c, at(name)+"/pause", nil)
}

// Resume resumes a paused sandbox. In a quarantined fork it also retries the failed step.
func (c *Client) Resume(ctx context.Context, name string) (wire.Sandbox, error) {
	return post[wire.Sandbox](ctx, c, at(name)+"/resume", nil)
}

// Log returns the history.
func (c *Client) Log(ctx context.Context, name string) (wire.LogResult, error) {
	return get[wire.LogResult](ctx, c, at(name)+"/log")
}

// Head returns the snapshot that the live state descends from.
func (c *Client) Head(ctx context.Context, name string) (wire.HeadResult, error) {
	return get[wire.HeadResult](ctx, c, at(name)+"/head")
}

// Branches returns the leaves of the history.
func (c *Client) Branches(ctx context.Context, name string) (wire.BranchesResult, error) {
	return get[wire.BranchesResult](ctx, c, at(name)+"/branches")
}

// Show returns one snapshot and its changes.
func (c *Client) Show(ctx context.Context, name, ref string) (wire.ShowResult, error) {
	return get[wire.ShowResult](ctx, c, at(name)+"/nodes/"+url.PathEscape(ref))
}

// Diff compares two states.
func (c *Client) Diff(ctx context.Context, name string, req wire.DiffRequest) (wire.DiffResult, error) {
	return get[wire.DiffResult](ctx, c, at(name)+"/diff?"+diffQuery(req).Encode())
}

// Patch writes the difference of two states to w, as unified diffs.
func (c *Client) Patch(ctx context.Context, name string, req wire.DiffRequest, w io.Writer) error {
	q := diffQuery(req)
	q.Set("patch", "true")
	return c.patch(ctx, at(name)+"/diff?"+q.Encode(), w)
}

// patch writes the response of a GET request, a patch, to w.
func (c *Client) patch(ctx context.Context, path string, w io.Writer) error {
	return c.patchOf(ctx, http.MethodGet, path, nil, w)
}

// patchOf writes the response of a request, a patch, to w; req may be nil.
func (c *Client) patchOf(ctx context.Context, method, path string, req any, w io.Writer) error {
	body, err := encode(req)
	if err != nil {
		return err
	}
	kind := ""
	if req != nil {
		kind = "application/json"
	}
	res, err := c.do(ctx, method, path, kind, body, "")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		return problem(res)
	}
	if _, err := io.CopyBuffer(w, res.Body, make([]byte, 64<<10)); err != nil {
		return fmt.Errorf("receive the patch: %w", err)
	}
	if tail := res.Trailer.Get("Coppice-Error"); tail != "" {
		var e wire.Error
		if err := json.Unmarshal([]byte(tail), &e); err != nil {
			return &Error{Kind: KindInternal, Message: tail}
		}
		return fromWire(e)
	}
	return nil
}

func diffQuery(req wire.DiffRequest) url.Values {
	q := url.Values{"a": {req.A}}
	if req.B != "" {
		q.Set("b", req.B)
	}
	if req.Other != "" {
		q.Set("other", req.Other)
	}
	if len(req.Paths) > 0 {
		q["path"] = req.Paths
	}
	if req.Stat {
		q.Set("stat", "true")
	}
	if req.Limit != 0 {
		q.Set("limit", strconv.Itoa(req.Limit))
	}
	return q
}

// Commit takes a snapshot of the live state.
func (c *Client) Commit(ctx context.Context, name, message string) (wire.CommitResult, error) {
	return post[wire.CommitResult](ctx, c, at(name)+"/commit", wire.CommitRequest{Message: message})
}

// CommitMemory takes a snapshot of the live state together with the memory of its processes.
func (c *Client) CommitMemory(ctx context.Context, name, message string) (wire.CommitResult, error) {
	return post[wire.CommitResult](ctx, c, at(name)+"/commit", wire.CommitRequest{Message: message, Memory: true})
}

// Run starts the supervised command of a sandbox. It runs without a client; use Attach to connect to it. If it could
// not be started, Run.Exit is set.
func (c *Client) Run(ctx context.Context, name string, req wire.RunRequest) (wire.Run, error) {
	return post[wire.Run](ctx, c, at(name)+"/run", req)
}

// Mark sets the message of snapshots in a sandbox.
func (c *Client) Mark(ctx context.Context, name string, req wire.MarkRequest) (wire.CommitResult, error) {
	return post[wire.CommitResult](ctx, c, at(name)+"/mark", req)
}

// Checkout rewinds to a snapshot, after a capture of the live state.
func (c *Client) Checkout(ctx context.Context, name string, req wire.CheckoutRequest) (wire.MoveResult, error) {
	return post[wire.MoveResult](ctx, c, at(name)+"/checkout", req)
}

// Undo rewinds by req.N snapshots, after a capture of the live state.
func (c *Client) Undo(ctx context.Context, name string, req wire.UndoRequest) (wire.MoveResult, error) {
	return post[wire.MoveResult](ctx, c, at(name)+"/undo", req)
}

// Redo reverts the last Undo.
func (c *Client) Redo(ctx context.Context, name string, req wire.RedoRequest) (wire.MoveResult, error) {
	return post[wire.MoveResult](ctx, c, at(name)+"/redo", req)
}

// Delete removes a snapshot from the history; its children keep their content.
func (c *Client) Delete(ctx context.Context, name, ref string) (wire.HeadResult, error) {
	var res wire.HeadResult
	err := c.call(ctx, http.MethodDelete, at(name)+"/nodes/"+url.PathEscape(ref), nil, &res)
	return res, err
}

// Tags returns all tags, as a map from tag to snapshot.
func (c *Client) Tags(ctx context.Context, name string) (map[string]string, error) {
	res, err := get[wire.TagsResult](ctx, c, at(name)+"/tags")
	return res.Tags, err
}

// SetTag tags a snapshot; ref "" is HEAD.
func (c *Client) SetTag(ctx context.Context, name, tag, ref string) (wire.TagResult, error) {
	return post[wire.TagResult](ctx, c, at(name)+"/tags", wire.TagRequest{Name: tag, Ref: ref})
}

// DeleteTag deletes a tag.
func (c *Client) DeleteTag(ctx context.Context, name, tag string) error {
	return c.call(ctx, http.MethodDelete, at(name)+"/tags/"+url.PathEscape(tag), nil, nil)
}

// Socket opens the socket of a sandbox's line protocol and returns its path on the daemon's host. It is open until
// CloseSocket, or until the sandbox is removed.
func (c *Client) Socket(ctx context.Context, name string) (wire.SocketResult, error) {
	return post[wire.SocketResult](ctx, c, at(name)+"/socket", nil)
}

// CloseSocket closes the socket that Socket opened.
func (c *Client) CloseSocket(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, at(name)+"/socket", nil, nil)
}

// GC deletes unused data, and the snapshots that req.Keep does not keep.
func (c *Client) GC(ctx context.Context, req wire.GCRequest, progress func(wire.Progress)) (wire.GCResult, error) {
	var res wire.GCResult
	return res, c.long(ctx, "/v1/gc", req, progress, &res)
}

// DiskUse measures the disk use of the daemon's home.
func (c *Client) DiskUse(ctx context.Context, progress func(wire.Progress)) (wire.DiskUse, error) {
	var res wire.DiskUse
	return res, c.long(ctx, "/v1/df", nil, progress, &res)
}

// Verify checks one sandbox, or with name "" the whole store. Damage is part of the result, not an error.
func (c *Client) Verify(ctx context.Context, name string, progress func(wire.Progress)) (wire.VerifyResult, error) {
	var res wire.VerifyResult
	p := "/v1/verify"
	if name != "" {
		p = at(name) + "/verify"
	}
	return res, c.long(ctx, p, nil, progress, &res)
}

// Fork creates sandboxes that start from a snapshot of this one.
func (c *Client) Fork(ctx context.Context, name string, req wire.ForkRequest) (wire.ForkResult, error) {
	return post[wire.ForkResult](ctx, c, at(name)+"/fork", req)
}

// Tournament runs candidates in forks of a sandbox and selects the winner. progress may be nil; it is called from the
// calling goroutine. If ctx ends first, the candidates are killed and their forks removed.
func (c *Client) Tournament(
	ctx context.Context, name string, req wire.TournamentRequest, progress func(wire.Progress),
) (wire.TournamentResult, error) {
	var res wire.TournamentResult
	return res, c.long(ctx, at(name)+"/tournament", req, progress, &res)
}

func at(name string) string { return "/v1/sandboxes/" + url.PathEscape(name) }

func get[T any](ctx context.Context, c *Client, path string) (T, error) {
	var res T
	err := c.call(ctx, http.MethodGet, path, nil, &res)
	return res, err
}

func post[T any](ctx context.Context, c *Client, path string, req any) (T, error) {
	var res T
	err := c.call(ctx, http.MethodPost, path, req, &res)
	return res, err
}

// call makes one request with JSON bodies; req and res may be nil.
func (c *Client) call(ctx context.Context, method, path string, req, res any) error {
	body, err := encode(req)
	if err != nil {
		return err
	}
	r, err := c.do(ctx, method, path, "application/json", body, "")
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode >= 300 {
		return problem(r)
	}
	if res == nil {
		_, _ = io.Copy(io.Discard, r.Body) // so that the connection can be reused
		return nil
	}
	if err := json.NewDecoder(r.Body).Decode(res); err != nil {
		return &Error{Kind: KindUnavailable, Message: "the daemon's response was interrupted: " + err.Error(), Err: err}
	}
	_, _ = io.CopyN(io.Discard, r.Body, 4<<10) // the end of the line, so that the connection can be reused
	return nil
}

func encode(req any) (io.Reader, error) {
	if req == nil {
		return nil, nil
	}
	b, err := json.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	return bytes.NewReader(b), nil
}

func (c *Client) do(
	ctx context.Context, method, path, kind string, body io.Reader, accept string,
) (*http.Response, error) {
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", kind)
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	cl := c.http
	if method == http.MethodGet {
		cl = c.kept
	}
	res, err := cl.Do(req)
	if err != nil {
		return nil, unavailable(err)
	}
	return res, nil
}

// request prepares a request to the daemon. All requests but those of exec, which are written by hand, go through it.
func (c *Client) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	if c.bad != nil {
		return nil, c.bad
	}
	base := "http://coppice"
	if c.to != nil {
		base = c.to.base
	}
	// A path may hold sandbox names and references; only "?" ends it.
	req, err := http.NewRequestWithContext(ctx, method, base+path, body)
	if err != nil {
		return nil, &Error{Kind: KindInvalid, Message: "make the request: " + err.Error(), Err: err}
	}
	if c.to != nil && c.to.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.to.token)
	}
	return req, nil
}

// unavailable returns an *Error (from Dial) and context errors as they are, and wraps other errors as
// KindUnavailable.
func unavailable(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.Canceled):
		return &Error{Kind: KindCancelled, Message: "cancelled", Err: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Kind: KindTimeout, Message: "the daemon did not respond in time", Err: err}
	}
	why := err.Error()
	var op *net.OpError
	if errors.As(err, &op) && op.Net == "unix" && op.Op != "dial" { // the address is a detail of the connection
		why = op.Op + ": " + op.Err.Error()
	}
	return &Error{Kind: KindUnavailable, Message: "reach the daemon: " + why, Err: err}
}

// problem decodes an error response.
func problem(res *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20)) // the server may reset the connection after its response
	var p wire.Problem
	if json.Unmarshal(b, &p) == nil && p.Kind != "" {
		return fromWire(wire.Error{Kind: p.Kind, Message: p.Detail, Hint: p.Hint})
	}
	return &Error{Kind: KindInternal,
		Message: "the daemon responded " + strconv.Itoa(res.StatusCode) + " " + strings.TrimSpace(string(b))}
}

func fromWire(e wire.Error) error { return &Error{Kind: e.Kind, Message: e.Message, Hint: e.Hint} }

// long makes a request whose response is a stream of events.
func (c *Client) long(ctx context.Context, path string, req any, progress func(wire.Progress), res any) error {
	body, err := encode(req)
	if err != nil {
		return err
	}
	return c.longBody(ctx, path, "application/json", body, progress, res)
}

func (c *Client) longBody(
	ctx context.Context, path, kind string, body io.Reader, progress func(wire.Progress), res any,
) error {
	accept := "application/x-ndjson"
	if progress == nil {
		accept = ""
	}
	r, err := c.do(ctx, http.MethodPost, path, kind, body, accept)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode >= 300 {
		return problem(r)
	}
	dec := json.NewDecoder(r.Body)
	if !strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-ndjson") {
		if err := dec.Decode(res); err != nil {
			return &Error{Kind: KindUnavailable, Message: "the daemon's response was interrupted: " + err.Error(), Err: err}
		}
		return nil
	}
	for {
		var ev struct {
			Progress *wire.Progress  `json:"progress"`
			Result   json.RawMessage `json:"result"`
			Error    *wire.Error     `json:"error"`
		}
		if err := dec.Decode(&ev); err != nil {
			return &Error{Kind: KindUnavailable, Message: "the daemon's response was interrupted: " + err.Error(), Err: err}
		}
		switch {
		case ev.Error != nil:
			return fromWire(*ev.Error)
		case ev.Result != nil:
			if err := json.Unmarshal(ev.Result, res); err != nil {
				return fmt.Errorf("decode the response: %w", err)
			}
			return nil
		case ev.Progress != nil && progress != nil:
			progress(*ev.Progress)
		}
	}
}

// Package client talks to a coppice daemon over its unix socket, or over TCP with
// a token. It works on every system that Go does; the daemon itself needs Linux. Anybody may import
// it; it imports client/wire alone.
//
// Errors that the daemon answered with are of type *Error and carry a kind to
// branch on and a hint. Errors on the way there are *Error of kind
// KindUnavailable.
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

// Error is an error that the daemon answered with.
type Error struct {
	Kind    string // one of the Kind constants, or one of a newer daemon
	Message string
	Hint    string // what to do about it; may be ""
	Err     error  // the cause on this side; may be nil
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

// Error gives the message.
func (e *Error) Error() string { return e.Message }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// IsKind reports whether err is an *Error of that kind.
func IsKind(err error, kind string) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == kind
}

// Options configures a Client. One of Host, Socket and Dial must be set; Host goes
// before the others.
type Options struct {
	// Host is where the daemon listens on TCP, as https://HOST:PORT or
	// http://HOST:PORT; a path behind it is that of a proxy. Redirects are not
	// followed.
	Host string
	// Token is the bearer token for Host. Over http:// everybody on the way can
	// read it.
	Token string
	// TLS says whom to trust at an https:// Host; nil is the system's authorities.
	TLS *tls.Config
	// Socket is the path of the daemon's socket. It may be longer than the 107
	// bytes that the system allows (on Linux).
	Socket string
	// Dial makes a connection; nil dials Socket. It is called for every
	// connection, also from several goroutines, and may start the daemon.
	Dial func(ctx context.Context) (net.Conn, error)
	// Patience is how long a lost exec tries to attach again; 0 is 30 s,
	// negative is not at all.
	Patience time.Duration
}

// expectTime is how long an upload waits for the daemon to want it: one that is
// refused is not sent.
const expectTime = 2 * time.Second

// Client is a connection to a daemon; it dials when it needs to. It may be used
// from several goroutines.
type Client struct {
	opt  Options
	http *http.Client // each call has a connection of its own
	kept *http.Client // for calls that are safe to repeat; the same as http on a socket
	to   *remote      // nil: over Dial
	bad  error        // what is wrong with the options
}

// New makes a Client. It does not connect.
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
		// What a kept connection may have carried is asked again where that harms
		// nobody; the rest is not sent on one that may be dead.
		return &Client{opt: opt, to: to, http: stays(to.transport(false)), kept: stays(to.transport(true))}
	}
	if opt.Dial == nil {
		socket := opt.Socket
		opt.Dial = func(ctx context.Context) (net.Conn, error) { return DialSocket(ctx, socket) }
	}
	cl := stays(&http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return opt.Dial(ctx) },
		// A connection that is kept may belong to a daemon that has ended since; a
		// call on it fails, and nobody knows whether it was carried out.
		DisableKeepAlives:     true,
		DisableCompression:    true,
		ExpectContinueTimeout: expectTime,
		WriteBufferSize:       256 << 10,
		ReadBufferSize:        256 << 10,
	})
	return &Client{opt: opt, http: cl, kept: cl}
}

// stays is a client that goes nowhere else: the token is for one daemon.
func stays(tr *http.Transport) *http.Client {
	return &http.Client{Transport: tr,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Close lets go of what the client holds between calls. Calls under way go on.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.kept.CloseIdleConnections()
}

// List gives all sandboxes, by name.
func (c *Client) List(ctx context.Context) ([]wire.Sandbox, error) {
	var res wire.ListResult
	err := c.call(ctx, http.MethodGet, "/v1/sandboxes", nil, &res)
	return res.Sandboxes, err
}

// Daemon gives the state of the daemon.
func (c *Client) Daemon(ctx context.Context) (wire.DaemonStatus, error) {
	return get[wire.DaemonStatus](ctx, c, "/v1/status")
}

// Probe tells what the daemon's host can do.
func (c *Client) Probe(ctx context.Context) (wire.ProbeReport, error) {
	return get[wire.ProbeReport](ctx, c, "/v1/probe")
}

// Create makes a sandbox. req.Tar is sent with it when req.From is an archive.
// progress may be nil; it is called from the calling goroutine.
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

// SetLife changes how long a sandbox lives, and when its processes are stopped.
func (c *Client) SetLife(ctx context.Context, name string, req wire.LifeRequest) (wire.Sandbox, error) {
	var res wire.Sandbox
	err := c.call(ctx, http.MethodPatch, at(name), req, &res)
	return res, err
}

// Status gives the state of one sandbox.
func (c *Client) Status(ctx context.Context, name string) (wire.StatusResult, error) {
	return get[wire.StatusResult](ctx, c, at(name))
}

// Execs lists the commands that run in a sandbox, oldest first.
func (c *Client) Execs(ctx context.Context, name string) ([]wire.ExecInfo, error) {
	res, err := get[wire.ExecsResult](ctx, c, at(name)+"/execs")
	return res.Execs, err
}

// Policy tells what a sandbox may use now.
func (c *Client) Policy(ctx context.Context, name string) (wire.PolicyResult, error) {
	return get[wire.PolicyResult](ctx, c, at(name)+"/policy")
}

// Remove removes a sandbox and what of its history nobody else needs. Without
// force a sandbox with running commands is refused.
func (c *Client) Remove(ctx context.Context, name string, force bool) error {
	p := at(name)
	if force {
		p += "?force=true"
	}
	return c.call(ctx, http.MethodDelete, p, nil, nil)
}

// Start starts a stopped sandbox, and its supervised command if it has one. What
// runs already is left alone.
func (c *Client) Start(ctx context.Context, name string) (wire.StatusResult, error) {
	return post[wire.StatusResult](ctx, c, at(name)+"/start", nil)
}

// Stop ends all processes of a sandbox.
func (c *Client) Stop(ctx context.Context, name string) (wire.StopResult, error) {
	return post[wire.StopResult](ctx, c, at(name)+"/stop", nil)
}

// Pause has all processes of a sandbox stand still until Resume, also when the daemon ends.
func (c *Client) Pause(ctx context.Context, name string) (wire.Sandbox, error) {
	return post[wire.Sandbox](ctx, c, at(name)+"/pause", nil)
}

// Resume ends a Pause; of a fork that is quarantined it tries again what failed.
func (c *Client) Resume(ctx context.Context, name string) (wire.Sandbox, error) {
	return post[wire.Sandbox](ctx, c, at(name)+"/resume", nil)
}

// Log gives the history.
func (c *Client) Log(ctx context.Context, name string) (wire.LogResult, error) {
	return get[wire.LogResult](ctx, c, at(name)+"/log")
}

// Head gives the snapshot that the live state descends from.
func (c *Client) Head(ctx context.Context, name string) (wire.HeadResult, error) {
	return get[wire.HeadResult](ctx, c, at(name)+"/head")
}

// Branches gives the leaves of the history.
func (c *Client) Branches(ctx context.Context, name string) (wire.BranchesResult, error) {
	return get[wire.BranchesResult](ctx, c, at(name)+"/branches")
}

// Show gives one snapshot and what it changed.
func (c *Client) Show(ctx context.Context, name, ref string) (wire.ShowResult, error) {
	return get[wire.ShowResult](ctx, c, at(name)+"/nodes/"+url.PathEscape(ref))
}

// Diff tells how two states differ.
func (c *Client) Diff(ctx context.Context, name string, req wire.DiffRequest) (wire.DiffResult, error) {
	return get[wire.DiffResult](ctx, c, at(name)+"/diff?"+diffQuery(req).Encode())
}

// Patch writes how two states differ as unified diffs to w.
func (c *Client) Patch(ctx context.Context, name string, req wire.DiffRequest, w io.Writer) error {
	q := diffQuery(req)
	q.Set("patch", "true")
	return c.patch(ctx, at(name)+"/diff?"+q.Encode(), w)
}

// patch writes the patch at a path to w.
func (c *Client) patch(ctx context.Context, path string, w io.Writer) error {
	return c.patchOf(ctx, http.MethodGet, path, nil, w)
}

// patchOf writes the patch that is the answer to a request, which may be nil.
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

// Commit takes a snapshot of the present.
func (c *Client) Commit(ctx context.Context, name, message string) (wire.CommitResult, error) {
	return post[wire.CommitResult](ctx, c, at(name)+"/commit", wire.CommitRequest{Message: message})
}

// CommitMemory takes a snapshot of the present with what its processes have in memory.
func (c *Client) CommitMemory(ctx context.Context, name, message string) (wire.CommitResult, error) {
	return post[wire.CommitResult](ctx, c, at(name)+"/commit", wire.CommitRequest{Message: message, Memory: true})
}

// Run starts the supervised command of a sandbox, which belongs to nobody who is
// connected: see Attach. One that could not be started has an Exit.
func (c *Client) Run(ctx context.Context, name string, req wire.RunRequest) (wire.Run, error) {
	return post[wire.Run](ctx, c, at(name)+"/run", req)
}

// Mark labels what happens in a sandbox.
func (c *Client) Mark(ctx context.Context, name string, req wire.MarkRequest) (wire.CommitResult, error) {
	return post[wire.CommitResult](ctx, c, at(name)+"/mark", req)
}

// Checkout goes to a snapshot; the present is captured first.
func (c *Client) Checkout(ctx context.Context, name string, req wire.CheckoutRequest) (wire.MoveResult, error) {
	return post[wire.MoveResult](ctx, c, at(name)+"/checkout", req)
}

// Undo goes back; the present is captured first.
func (c *Client) Undo(ctx context.Context, name string, req wire.UndoRequest) (wire.MoveResult, error) {
	return post[wire.MoveResult](ctx, c, at(name)+"/undo", req)
}

// Redo takes back the last undo.
func (c *Client) Redo(ctx context.Context, name string, req wire.RedoRequest) (wire.MoveResult, error) {
	return post[wire.MoveResult](ctx, c, at(name)+"/redo", req)
}

// Delete drops a snapshot from the history; its children keep their content.
func (c *Client) Delete(ctx context.Context, name, ref string) (wire.HeadResult, error) {
	var res wire.HeadResult
	err := c.call(ctx, http.MethodDelete, at(name)+"/nodes/"+url.PathEscape(ref), nil, &res)
	return res, err
}

// Tags gives all tags: name to snapshot.
func (c *Client) Tags(ctx context.Context, name string) (map[string]string, error) {
	res, err := get[wire.TagsResult](ctx, c, at(name)+"/tags")
	return res.Tags, err
}

// SetTag names a snapshot; ref "" is HEAD.
func (c *Client) SetTag(ctx context.Context, name, tag, ref string) (wire.TagResult, error) {
	return post[wire.TagResult](ctx, c, at(name)+"/tags", wire.TagRequest{Name: tag, Ref: ref})
}

// DeleteTag drops a name.
func (c *Client) DeleteTag(ctx context.Context, name, tag string) error {
	return c.call(ctx, http.MethodDelete, at(name)+"/tags/"+url.PathEscape(tag), nil, nil)
}

// Socket gives where a sandbox's line protocol is spoken, on the daemon's host. It
// is spoken there until CloseSocket, or until the sandbox is removed.
func (c *Client) Socket(ctx context.Context, name string) (wire.SocketResult, error) {
	return post[wire.SocketResult](ctx, c, at(name)+"/socket", nil)
}

// CloseSocket closes it.
func (c *Client) CloseSocket(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, at(name)+"/socket", nil, nil)
}

// GC frees what nothing refers to, after it dropped what req does not keep.
func (c *Client) GC(ctx context.Context, req wire.GCRequest, progress func(wire.Progress)) (wire.GCResult, error) {
	var res wire.GCResult
	return res, c.long(ctx, "/v1/gc", req, progress, &res)
}

// DiskUse measures what the daemon's home takes on the disk.
func (c *Client) DiskUse(ctx context.Context, progress func(wire.Progress)) (wire.DiskUse, error) {
	var res wire.DiskUse
	return res, c.long(ctx, "/v1/df", nil, progress, &res)
}

// Verify checks one sandbox, or with name "" the whole store. Damage is in the
// result and is no error.
func (c *Client) Verify(ctx context.Context, name string, progress func(wire.Progress)) (wire.VerifyResult, error) {
	var res wire.VerifyResult
	p := "/v1/verify"
	if name != "" {
		p = at(name) + "/verify"
	}
	return res, c.long(ctx, p, nil, progress, &res)
}

// Fork makes new sandboxes that share everything with this one.
func (c *Client) Fork(ctx context.Context, name string, req wire.ForkRequest) (wire.ForkResult, error) {
	return post[wire.ForkResult](ctx, c, at(name)+"/fork", req)
}

// Tournament runs candidates in forks of a sandbox and finds the one that wins.
// progress may be nil; it is called from the calling goroutine. When ctx ends
// before, the candidates are killed and their forks removed.
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

// call makes one request with JSON both ways; req and res may be nil.
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
		_, _ = io.Copy(io.Discard, r.Body) // so that the connection can be used again
		return nil
	}
	if err := json.NewDecoder(r.Body).Decode(res); err != nil {
		return &Error{Kind: KindUnavailable, Message: "the daemon's response was interrupted: " + err.Error(), Err: err}
	}
	_, _ = io.CopyN(io.Discard, r.Body, 4<<10) // the line's end, so that the connection can be used again
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

// request begins a request to wherever the daemon is. Every request is made by it,
// but for those of exec, which speak for themselves.
func (c *Client) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	if c.bad != nil {
		return nil, c.bad
	}
	base := "http://coppice"
	if c.to != nil {
		base = c.to.base
	}
	// A path may hold sandbox names and references; nothing but "?" ends it.
	req, err := http.NewRequestWithContext(ctx, method, base+path, body)
	if err != nil {
		return nil, &Error{Kind: KindInvalid, Message: "make the request: " + err.Error(), Err: err}
	}
	if c.to != nil && c.to.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.to.token)
	}
	return req, nil
}

// unavailable keeps an *Error (of Dial) and context errors, and makes the rest
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
	if errors.As(err, &op) && op.Net == "unix" && op.Op != "dial" { // its address is how the daemon got there
		why = op.Op + ": " + op.Err.Error()
	}
	return &Error{Kind: KindUnavailable, Message: "reach the daemon: " + why, Err: err}
}

// problem reads an error answer.
func problem(res *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	var p wire.Problem
	if err == nil && json.Unmarshal(b, &p) == nil && p.Kind != "" {
		return fromWire(wire.Error{Kind: p.Kind, Message: p.Detail, Hint: p.Hint})
	}
	return &Error{Kind: KindInternal,
		Message: "the daemon responded " + strconv.Itoa(res.StatusCode) + " " + strings.TrimSpace(string(b))}
}

func fromWire(e wire.Error) error { return &Error{Kind: e.Kind, Message: e.Message, Hint: e.Hint} }

// long makes a request whose answer is a stream of events.
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

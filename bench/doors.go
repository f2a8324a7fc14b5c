//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/errgroup"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
)

// crowds are the numbers of concurrent clients.
var crowds = [...]int{1, 64}

// crowd runs n operations, divided among concurrent clients, after one uncounted operation of each client. It
// also returns the total time.
func (b *bench) crowd(clients, n int, op func(ctx context.Context, client int) error) (stat, time.Duration, error) {
	each := max(1, n/clients)
	took := make([][]time.Duration, clients)
	all := func(n int) error {
		g, ctx := errgroup.WithContext(b.ctx)
		for i := range clients {
			g.Go(func() error {
				for range n {
					t := time.Now()
					if err := op(ctx, i); err != nil {
						return err
					}
					took[i] = append(took[i], time.Since(t))
				}
				return nil
			})
		}
		return g.Wait()
	}
	if err := all(1); err != nil {
		return stat{}, 0, err
	}
	clear(took)
	began := time.Now()
	err := all(each)
	whole := time.Since(began)
	if err != nil {
		return stat{}, 0, err
	}
	var ds []time.Duration
	for _, t := range took {
		ds = append(ds, t...)
	}
	return statOf(ds), whole, nil
}

// remotes creates clients over TCP, each with its own token: the request rate of one token is limited.
func (b *bench) remotes(n int) (_ []*client.Client, tokens []string, forget func() error, _ error) {
	var cs []*client.Client
	var ids []string
	forget = func() error {
		var errs []error
		for i, c := range cs {
			c.Close()
			errs = append(errs, b.c.RevokeToken(b.ctx, ids[i]))
		}
		return errors.Join(errs...)
	}
	for range n {
		t, err := b.c.CreateToken(b.ctx, wire.TokenRequest{Name: "bench", Scope: "operate"})
		if err != nil {
			return nil, nil, nil, errors.Join(err, forget())
		}
		ids, tokens = append(ids, t.ID), append(tokens, t.Secret)
		cs = append(cs, client.New(client.Options{Host: b.tcp, Token: t.Secret}))
	}
	return cs, tokens, forget, nil
}

// door is a way to run true in a sandbox.
type door struct {
	name string
	cmd  []string // the command to run on the host, for comparison
	// open returns a function that runs true once, for a number of clients.
	open func(b *bench, name string, clients int) (op func(ctx context.Context, client int) error,
		shut func() error, err error)
	one bool // only for one client
}

// login keeps login shells from reading a user's profile, which is not to be measured.
const login = "HOME=/var/empty"

// doors times a trivial command over each door.
func (b *bench) doors(scale int) error {
	bare, shell := []string{"true"}, []string{"env", login, "bash", "-lc", "true"}
	all := []door{
		{name: "the unix socket", cmd: bare, open: (*bench).overSocket},
		{name: "TCP with a token", cmd: bare, open: (*bench).overTCP},
		{name: "TCP with a token, as Server-Sent Events", cmd: bare, open: (*bench).overEvents},
		{name: "the line protocol, which runs bash -lc", cmd: shell, open: (*bench).overLines},
		{name: "MCP on TCP, which runs bash -lc", cmd: shell, open: (*bench).overMCP},
		{name: "MCP over stdio, which runs bash -lc", cmd: shell, open: (*bench).overStdio, one: true},
	}
	theirs := map[string]stat{}
	for _, n := range crowds {
		for _, cmd := range [][]string{bare, shell} {
			s, _, err := b.crowd(n, 1000/scale, func(context.Context, int) error { return b.host(cmd...) })
			if err != nil {
				return err
			}
			theirs[fmt.Sprint(n, cmd)] = s
		}
	}
	for _, d := range all {
		for _, n := range crowds {
			if n > 1 && d.one {
				continue
			}
			ours, err := b.through(d, n, scale)
			if err != nil {
				return fmt.Errorf("%s, %d clients: %w", d.name, n, err)
			}
			budget := ""
			if n == 1 && d.name == all[0].name {
				budget = "2 ms"
			}
			b.add("exec true over "+d.name, fmt.Sprintf("clients at once: %d", n), ours, budget,
				"fork+exec "+strings.TrimPrefix(strings.Join(d.cmd, " "), "env "+login+" "), theirs[fmt.Sprint(n, d.cmd)])
		}
	}
	return nil
}

func (b *bench) through(d door, clients, scale int) (stat, error) {
	sb, err := b.c.Create(b.ctx, wire.CreateRequest{Env: []string{login}}, nil)
	if err != nil {
		return stat{}, err
	}
	name := sb.Name
	op, shut, err := d.open(b, name, clients)
	if err != nil {
		return stat{}, err
	}
	s, _, err := b.crowd(clients, 1000/scale, op)
	return s, errors.Join(err, shut(), b.c.Remove(b.ctx, name, true))
}

func (b *bench) overSocket(name string, _ int) (func(context.Context, int) error, func() error, error) {
	return func(ctx context.Context, _ int) error { return execTrue(ctx, b.c, name) }, func() error { return nil }, nil
}

func (b *bench) overTCP(name string, clients int) (func(context.Context, int) error, func() error, error) {
	cs, _, forget, err := b.remotes(clients)
	return func(ctx context.Context, i int) error { return execTrue(ctx, cs[i], name) }, forget, err
}

func execTrue(ctx context.Context, c *client.Client, name string) error {
	x, err := c.Exec(ctx, name, wire.ExecRequest{Cmd: []string{"true"}}, client.Streams{})
	if err == nil && x.Code != 0 {
		err = fmt.Errorf("true: exit code %d: %s", x.Code, x.Message)
	}
	return err
}

// dialFunc is the type of http.Transport.DialContext.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// asked returns a client that uses the tokens in turn.
func asked(dial dialFunc, tokens ...string) *http.Client {
	return &http.Client{
		Transport: &bearer{tokens: tokens,
			Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: len(crowds) * crowds[len(crowds)-1]}}}
}

// bearer adds tokens to requests.
type bearer struct {
	tokens []string
	next   atomic.Uint32
	*http.Transport
}

func (b *bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if n := uint32(len(b.tokens)); n > 0 {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.tokens[b.next.Add(1)%n])
	}
	return b.Transport.RoundTrip(r)
}

func (b *bench) overEvents(name string, clients int) (func(context.Context, int) error, func() error, error) {
	_, tokens, forget, err := b.remotes(clients)
	if err != nil {
		return nil, nil, err
	}
	web := make([]*http.Client, clients)
	for i := range web {
		web[i] = asked((&net.Dialer{}).DialContext, tokens[i])
	}
	op := func(ctx context.Context, i int) error {
		return execEvents(ctx, web[i], b.tcp, name, io.Discard, "true")
	}
	return op, func() error {
		for _, w := range web {
			w.CloseIdleConnections()
		}
		return forget()
	}, nil
}

// execEvents runs a command, and reads its events up to the exit. It writes the output to out.
func execEvents(ctx context.Context, web *http.Client, base, name string, out io.Writer, cmd ...string) error {
	ask, err := json.Marshal(wire.ExecRequest{Cmd: cmd})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/sandboxes/"+name+"/exec", bytes.NewReader(ask))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	res, err := web.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	in := bufio.NewReader(res.Body)
	if res.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(in, 500))
		return errors.Join(fmt.Errorf("the daemon answered %s: %s", res.Status, text), err)
	}
	kind := ""
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		line = strings.TrimSpace(line)
		if k, ok := strings.CutPrefix(line, "event: "); ok {
			kind = k
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var ev struct {
			wire.Output
			wire.Exit
		}
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			return err
		}
		switch kind {
		case "stdout":
			if _, err := io.WriteString(out, ev.Text+string(ev.Base64)); err != nil {
				return err
			}
		case "exit":
			if ev.Code != 0 {
				return fmt.Errorf("%q: exit code %d: %s", cmd, ev.Code, ev.Message)
			}
			_, err := io.Copy(io.Discard, in) // so that the connection can be reused
			return err
		case "started":
		default:
			return fmt.Errorf("%q: event %s: %s", cmd, kind, data)
		}
	}
}

func (b *bench) overLines(name string, clients int) (func(context.Context, int) error, func() error, error) {
	at, err := b.c.Socket(b.ctx, name)
	if err != nil {
		return nil, nil, err
	}
	type line struct {
		net.Conn
		in *bufio.Reader
	}
	lines := make([]line, clients)
	shut := func() error {
		for _, l := range lines {
			if l.Conn != nil {
				l.Close()
			}
		}
		return b.c.CloseSocket(b.ctx, name)
	}
	for i := range lines {
		conn, err := client.DialSocket(b.ctx, at.Path)
		if err != nil {
			return nil, nil, errors.Join(err, shut())
		}
		lines[i] = line{conn, bufio.NewReader(conn)}
	}
	return func(_ context.Context, i int) error {
		if _, err := io.WriteString(lines[i], `{"op":"exec","cmd":"true"}`+"\n"); err != nil {
			return err
		}
		for {
			text, err := lines[i].in.ReadBytes('\n')
			if err != nil {
				return err
			}
			var a struct {
				OK    bool
				Error string
				Exit  int
			}
			switch err := json.Unmarshal(text, &a); {
			case err != nil:
				return err
			case a.Error != "" || a.Exit != 0:
				return fmt.Errorf("true: exit code %d, %s", a.Exit, a.Error)
			case a.OK:
				return nil
			}
		}
	}, shut, nil
}

func (b *bench) overMCP(name string, clients int) (func(context.Context, int) error, func() error, error) {
	_, tokens, forget, err := b.remotes(clients)
	if err != nil {
		return nil, nil, err
	}
	op, shut, err := b.models(name, clients, func(i int) mcp.Transport {
		return &mcp.StreamableClientTransport{Endpoint: b.tcp + "/mcp",
			HTTPClient: asked((&net.Dialer{}).DialContext, tokens[i]), MaxRetries: -1}
	})
	if err != nil {
		return nil, nil, errors.Join(err, forget())
	}
	return op, func() error { return errors.Join(shut(), forget()) }, nil
}

func (b *bench) overStdio(name string, clients int) (func(context.Context, int) error, func() error, error) {
	return b.models(name, clients, func(int) mcp.Transport {
		cmd := exec.CommandContext(b.ctx, b.bin, "mcp")
		cmd.Env = append(cmd.Environ(), "COPPICE_HOME="+filepath.Join(b.dir, "home"))
		return &mcp.CommandTransport{Command: cmd}
	})
}

// models creates MCP clients.
func (b *bench) models(
	name string, clients int, transport func(i int) mcp.Transport,
) (func(context.Context, int) error, func() error, error) {
	c := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	var all []*mcp.ClientSession
	shut := func() error {
		var errs []error
		for _, s := range all {
			errs = append(errs, s.Close())
		}
		return errors.Join(errs...)
	}
	for i := range clients {
		s, err := c.Connect(b.ctx, transport(i), nil)
		if err != nil {
			return nil, nil, errors.Join(err, shut())
		}
		all = append(all, s)
	}
	return func(ctx context.Context, i int) error {
		r, err := all[i].CallTool(ctx,
			&mcp.CallToolParams{Name: "exec", Arguments: map[string]any{"sandbox": name, "cmd": "true"}})
		if err != nil {
			return err
		}
		if out, ok := r.StructuredContent.(map[string]any); r.IsError || !ok || out["exit"] != 0.0 {
			return fmt.Errorf("the tool answered %+v", r.StructuredContent)
		}
		return nil
	}, shut, nil
}

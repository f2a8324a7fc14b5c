package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/httpapi"
)

// teller is an engine that sends the events from its channel tell.
type teller struct {
	engine
	name  string
	after uint64
	tell  chan wire.SandboxEvent
	ended chan error // why Events returned
}

func (f *teller) Events(ctx context.Context, name string, after uint64, yield func(wire.SandboxEvent) error) error {
	if name == "nobody" {
		return fault.New(fault.NotFound, "sandbox %q not found", name)
	}
	f.name, f.after = name, after
	err := yield(wire.SandboxEvent{Seq: 6})
	for err == nil {
		select {
		case ev, ok := <-f.tell:
			if !ok {
				return nil
			}
			err = yield(ev)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	f.ended <- err
	return err
}

func newTeller() *teller {
	return &teller{tell: make(chan wire.SandboxEvent, 4), ended: make(chan error, 1)}
}

func TestEvents_AreStreamed(t *testing.T) {
	t.Parallel()
	f := newTeller()
	c := serve(t, f)
	ctx, stop := context.WithCancel(t.Context())
	got, ended := make(chan wire.SandboxEvent), make(chan error)
	go func() {
		ended <- c.Events(ctx, "a/b", 5, func(ev wire.SandboxEvent) error { got <- ev; return nil })
	}()
	for seq := range uint64(3) {
		f.tell <- wire.SandboxEvent{Seq: 7 + seq, Kind: wire.EventSnapshot, Message: "a\nb\x1b[31m"}
		if ev := <-got; ev.Seq != 7+seq || ev.Message != "a\nb\x1b[31m" {
			t.Fatalf("%+v", ev)
		}
	}
	if f.name != "a/b" || f.after != 5 {
		t.Errorf("got a request for %q after %d", f.name, f.after)
	}
	stop()
	if err := <-ended; !client.IsKind(err, client.KindCancelled) {
		t.Errorf("the client's error is %v", err)
	}
	if err := <-f.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the engine's error is %v", err)
	}
}

func TestEvents_EndOnRemoveAndShutdown(t *testing.T) {
	t.Parallel()
	f := newTeller()
	c := serve(t, f)
	f.tell <- wire.SandboxEvent{Seq: 7, Kind: wire.EventRemoved}
	close(f.tell)
	if err := c.Events(t.Context(), "a", 0, func(wire.SandboxEvent) error { return nil }); err != nil {
		t.Error(err)
	}
	if f.after != 0 {
		t.Errorf("got a request for events after %d", f.after)
	}
	if err := c.Events(t.Context(), "", wire.EventsNow,
		func(wire.SandboxEvent) error { return nil }); !client.IsKind(err, client.KindUnavailable) {
		t.Errorf("while the daemon stops: %v", err)
	}
	if f.after != wire.EventsNow {
		t.Errorf("got a request for events after %d", f.after)
	}
	if err := c.Events(t.Context(), "nobody", 0, nil); !client.IsKind(err, client.KindNotFound) {
		t.Errorf("unknown sandbox: %v", err)
	}
}

// TestEvents_SendHeaderBeforeFirstEvent also checks that the stream ends when the daemon stops.
func TestEvents_SendHeaderBeforeFirstEvent(t *testing.T) {
	t.Parallel()
	f := newTeller()
	base, stop := context.WithCancel(t.Context())
	ln := listen(t)
	srv := &http.Server{Handler: owned(httpapi.Options{Roles: roles(f), Base: base, Log: slog.New(slog.DiscardHandler)})}
	go srv.Serve(ln)
	t.Cleanup(func() { srv.Close() })
	conn, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := conn.Write([]byte("GET /v1/events HTTP/1.1\r\nHost: coppice\r\nConnection: close\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("%s %s", res.Status, res.Header)
	}
	stop()
	<-f.ended
	if n, err := res.Body.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("%d bytes, %v", n, err)
	}

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://coppice/v1/events?after=x", nil)
	if err != nil {
		t.Fatal(err)
	}
	cl := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", ln.Addr().String())
	}}}
	bad, err := cl.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Body.Close()
	if bad.StatusCode != http.StatusBadRequest || !strings.Contains(bad.Header.Get("Content-Type"), "problem") {
		t.Errorf("invalid number: %s", bad.Status)
	}
}

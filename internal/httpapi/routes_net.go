package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

// AskedNet selects network events.
type AskedNet struct {
	Named
	Last  int      `query:"last" doc:"only the newest N stored events; -1 returns all"`
	Since string   `query:"since" doc:"only events since this time, as in 2026-01-02T15:04:05Z"`
	Kinds []string `query:"kinds" doc:"only these kinds: dns,connect,request,answer,deny,end,policy,ask"`
}

func (in *AskedNet) request() (wire.NetRequest, error) {
	req := wire.NetRequest{Last: in.Last, Kinds: in.Kinds}
	if in.Since == "" {
		return req, nil
	}
	var err error
	if req.Since, err = time.Parse(time.RFC3339Nano, in.Since); err != nil {
		return req, fault.New(fault.Invalid, "invalid since %q: must be a time", shorten(in.Since)).
			WithHint("for example: 2026-01-02T15:04:05Z")
	}
	return req, nil
}

// addNet adds the operations on a sandbox's network.
func (s *Server) addNet(api huma.API) {
	const at = box + "/net"
	plain(s, api, operation("GET", at, "net", "List the network events of a sandbox", tagNet, auth.Read),
		func(ctx context.Context, in *AskedNet) (wire.NetResult, error) {
			req, err := in.request()
			if err != nil {
				return wire.NetResult{}, err
			}
			return s.opt.Network.Net(ctx, in.Name, req)
		})
	op := streams(
		operation("GET", at+"/events", "netEvents", "Follow the network events of a sandbox until it is removed",
			tagNet, auth.Read))
	answers(&op, http.StatusOK, ndjson,
		"one NetEvent per line; as Server-Sent Events if the client accepts text/event-stream", schemaOf[wire.NetEvent](api))
	answers(&op, http.StatusOK, asEvents, "", schemaOf[wire.NetEvent](api))
	raw(s, api, op, s.netEvents)
	plain(s, api,
		operation("GET", at+"/why", "netWhy", "Explain how the policy decides about a destination",
			tagNet, auth.Read),
		func(ctx context.Context, in *struct {
			Named
			Host   string `query:"host" required:"true" doc:"HOST[:PORT], or udp://HOST:PORT; the default port is 443"`
			Method string `query:"method" doc:"method of an HTTP request, such as GET"`
			Path   string `query:"path" doc:"path of an HTTP request"`
		}) (wire.WhyResult, error) {
			return s.opt.Network.Why(ctx, in.Name, wire.WhyRequest{Host: in.Host, Method: in.Method, Path: in.Path})
		})
	plain(s, api,
		replayable(operation("POST", at+"/allow", "netAllow", "Change the network rules of a "+
			"sandbox, immediately if it is running",
			tagNet, auth.Operate)), s.netAllow)
	plain(s, api,
		operation("GET", at+"/asking", "netAsking", "List pending requests", tagNet, auth.Read),
		func(ctx context.Context, in *Named) (wire.NetAsking, error) {
			return s.opt.Network.Asking(ctx, in.Name)
		})
	plain(s, api,
		replayable(operation("POST", at+"/approve", "netApprove", "Approve a pending request", tagNet, auth.Operate)),
		s.netApprove)
	plain(s, api,
		replayable(operation("POST", at+"/deny", "netDeny", "Deny a pending request", tagNet, auth.Operate)),
		func(ctx context.Context, in *answering) (wire.AnswerResult, error) {
			return s.opt.Network.Deny(ctx, in.Name, in.Body)
		})
}

// answering is the input of approve and deny.
type answering struct {
	Named
	Body wire.AnswerRequest
}

// netApprove requires the same rights as netAllow.
func (s *Server) netApprove(ctx context.Context, in *answering) (wire.AnswerResult, error) {
	if limited(auth.From(ctx)) {
		return wire.AnswerResult{}, fault.New(fault.Denied, "a token that is limited to some "+
			"sandboxes cannot allow connections").
			WithHint("on the daemon's machine: coppice net approve %s HOST", in.Name)
	}
	return s.opt.Network.Approve(ctx, in.Name, in.Body)
}

// netAllow changes rules. A limited token may not widen what its sandboxes reach: its creator decided that.
func (s *Server) netAllow(ctx context.Context, in *struct {
	Named
	Body wire.AllowRequest
}) (wire.AllowResult, error) {
	if limited(auth.From(ctx)) && len(in.Body.Allow)+len(in.Body.RemoveDeny) > 0 {
		return wire.AllowResult{}, fault.New(fault.Denied, "a token that is limited to some "+
			"sandboxes cannot allow connections").
			WithHint("on the daemon's machine: coppice net allow %s RULE", in.Name)
	}
	return s.opt.Network.Allow(ctx, in.Name, in.Body)
}

func (s *Server) netEvents(in *AskedNet, w http.ResponseWriter, r *http.Request) {
	req, err := in.request()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.stream(w, r, func(ctx context.Context, begin func() error, tell func(kind, id string, v any) error) error {
		return s.opt.Network.FollowNet(ctx, in.Name, req, func(ev wire.NetEvent) error {
			if err := begin(); err != nil || ev.Kind == "" {
				return err
			}
			return tell(ev.Kind, "", ev)
		})
	})
}

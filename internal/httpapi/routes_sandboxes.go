package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/filter"
)

// addSandboxes adds the operations that create, show and remove sandboxes.
func (s *Server) addSandboxes(api huma.API) {
	plain(s, api,
		each(operation("GET", "/v1/sandboxes", "listSandboxes", "List sandboxes, by name", tagSandboxes, auth.Read)), s.list)
	s.addCreate(api)
	plain(s, api, operation("GET", box, "getSandbox", "Show a sandbox", tagSandboxes, auth.Read),
		func(ctx context.Context, in *Named) (wire.StatusResult, error) {
			return s.opt.Sandboxes.Status(ctx, in.Name)
		})
	plain(s, api, operation("GET", box+"/policy", "getPolicy", "Show the policy of a sandbox", tagSandboxes, auth.Read),
		func(ctx context.Context, in *Named) (wire.PolicyResult, error) {
			return s.opt.Network.Policy(ctx, in.Name)
		})
	plain(s, api,
		operation("DELETE", box, "removeSandbox", "Remove a sandbox and its history",
			tagSandboxes, auth.Operate),
		func(ctx context.Context, in *struct {
			Named
			Force      bool `query:"force" doc:"also if commands are running"`
			WithLedger bool `query:"with_ledger" doc:"also remove its records; for a removed sandbox, give its id"`
		}) (wire.RemoveResult, error) {
			if in.WithLedger {
				if limited(auth.From(ctx)) {
					return wire.RemoveResult{},
						fault.New(fault.Denied, "a token that is limited to some sandboxes cannot remove their records").
							WithHint("on the daemon's machine: coppice rm --with-ledger %s", in.Name)
				}
				if err := s.opt.Sandboxes.RemoveWithLedger(ctx, in.Name, in.Force); err != nil {
					return wire.RemoveResult{}, err
				}
				return wire.RemoveResult{Removed: []string{in.Name}}, nil
			}
			names, err := s.opt.Sandboxes.Remove(ctx, []string{in.Name}, in.Force)
			return wire.RemoveResult{Removed: names}, err
		})
	plain(s, api,
		operation("PATCH", box, "updateSandbox", "Change the lifetime, the idle timeout and the labels of a sandbox",
			tagSandboxes, auth.Operate),
		func(ctx context.Context, in *struct {
			Named
			Body wire.LifeRequest
		}) (wire.Sandbox, error) {
			return s.opt.Sandboxes.SetLife(ctx, in.Name, in.Body)
		})
	plain(s, api,
		operation("POST", box+"/start", "startSandbox", "Start a stopped sandbox and its supervised command",
			tagSandboxes, auth.Operate),
		func(ctx context.Context, in *Named) (wire.StatusResult, error) {
			return s.opt.Power.Start(ctx, in.Name)
		})
	plain(s, api,
		operation("POST", box+"/stop", "stopSandbox", "Stop all processes and capture their changes",
			tagSandboxes, auth.Operate),
		func(ctx context.Context, in *Named) (wire.StopResult, error) { return s.opt.Power.Stop(ctx, in.Name) })
	plain(s, api,
		operation("POST", box+"/pause", "pauseSandbox", "Pause all processes", tagSandboxes, auth.Operate),
		func(ctx context.Context, in *Named) (wire.Sandbox, error) { return s.opt.Power.Pause(ctx, in.Name) })
	plain(s, api,
		operation("POST", box+"/resume", "resumeSandbox",
			"Resume paused processes, or retry the re-keying of a quarantined fork", tagSandboxes, auth.Operate),
		func(ctx context.Context, in *Named) (wire.Sandbox, error) { return s.opt.Power.Resume(ctx, in.Name) })
	plain(s, api,
		replayable(created(
			operation("POST", box+"/fork", "forkSandbox", "Fork a sandbox", tagSandboxes,
				auth.Operate))), s.fork)
	long(s, api,
		replayable(operation("POST", box+"/tournament", "tournament",
			"Run candidates in forks, test each and choose a winner", tagSandboxes, auth.Operate)),
		func(ctx context.Context, in *struct {
			Named
			Body wire.TournamentRequest
		}, progress func(wire.Progress)) (wire.TournamentResult, error) {
			ctx, cancel := s.bounded(ctx)
			defer cancel()
			return s.tournament(ctx, in.Name, in.Body, progress)
		})
	plain(s, api,
		operation("POST", box+"/socket", "openSocket", "Open the socket of the line protocol", tagSandboxes, auth.Operate),
		func(ctx context.Context, in *Named) (wire.SocketResult, error) {
			if s.opt.Sockets == nil {
				return wire.SocketResult{}, noSockets()
			}
			path, err := s.opt.Sockets.OpenSocket(ctx, in.Name)
			return wire.SocketResult{Path: path}, err
		})
	silent(s, api,
		operation("DELETE", box+"/socket", "closeSocket", "Close the socket of the line protocol",
			tagSandboxes, auth.Operate),
		func(ctx context.Context, in *Named) error {
			if s.opt.Sockets == nil {
				return noSockets()
			}
			return s.opt.Sockets.CloseSocket(ctx, in.Name)
		})
}

// listInput is the query of the list of sandboxes.
type listInput struct {
	Filter []string `query:"filter,explode" doc:"only sandboxes that satisfy KEY=VALUE: see docs/api.md; repeatable"`
}

// Resolve implements huma.Resolver. It rejects what huma ignores, an empty filter and an unknown parameter: the
// answer would list all sandboxes, and the client may remove what it lists.
func (*listInput) Resolve(ctx huma.Context) (errs []error) {
	u := ctx.URL()
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return []error{&huma.ErrorDetail{Location: "query", Message: err.Error()}}
	}
	for _, key := range slices.Sorted(maps.Keys(query)) {
		switch {
		case key != "filter":
			errs = append(errs, &huma.ErrorDetail{Location: "query." + key, Message: "unknown parameter; expected filter"})
		case slices.Contains(query[key], ""):
			errs = append(errs, &huma.ErrorDetail{Location: "query.filter", Message: "expected KEY=VALUE, got an empty value"})
		}
	}
	return errs
}

func (s *Server) list(ctx context.Context, in *listInput) (wire.ListResult, error) {
	chosen, err := filter.Parse(in.Filter)
	if err != nil {
		return wire.ListResult{}, err
	}
	list, err := s.opt.Sandboxes.List(ctx)
	if p := auth.From(ctx); limited(p) {
		list = slices.DeleteFunc(list, func(sb wire.Sandbox) bool { return !sees(p, sb.ID) })
	}
	return wire.ListResult{Sandboxes: chosen.Choose(list)}, err
}

// fork creates forks; with a limited token they are added to its sandboxes.
func (s *Server) fork(ctx context.Context, in *struct {
	Named
	Body *wire.ForkRequest
}) (wire.ForkResult, error) {
	req := orZero(in.Body)
	if req.N < 0 {
		return wire.ForkResult{}, fault.New(fault.Invalid, "invalid number of forks %d: must be positive", req.N).
			WithHint("send a number of 1 or more")
	}
	req.N = max(req.N, len(req.Names), 1)
	if err := mayWiden(ctx, req.Policy); err != nil {
		return wire.ForkResult{}, err
	}
	if req.Grants == "reissue" && limited(auth.From(ctx)) {
		return wire.ForkResult{},
			fault.New(fault.Denied, "a token that is limited to some sandboxes cannot give forks grants").
				WithHint("omit grants: forks get those that the owner gave with fork")
	}
	widen, err := s.widener(ctx)
	if err != nil {
		return wire.ForkResult{}, err
	}
	res, err := s.opt.Moves.Fork(ctx, in.Name, req)
	if err != nil {
		return res, err
	}
	var ids []string
	for _, sb := range res.Sandboxes {
		ids = append(ids, sb.ID)
	}
	return res, widen(ids)
}

// mayWiden refuses policy files for forks from a limited token, which may be used inside one of its sandboxes: their
// forks keep their restrictions.
func mayWiden(ctx context.Context, files []wire.PolicyFile) error {
	if len(files) > 0 && limited(auth.From(ctx)) {
		return fault.New(fault.Denied, "a token that is limited to some sandboxes cannot give their forks another policy").
			WithHint("omit policy: forks inherit the policy of their sandbox")
	}
	return nil
}

// tournament runs a tournament; with a limited token the forks are added to its sandboxes.
func (s *Server) tournament(
	ctx context.Context, name string, req wire.TournamentRequest, progress func(wire.Progress),
) (wire.TournamentResult, error) {
	if err := mayWiden(ctx, req.Policy); err != nil {
		return wire.TournamentResult{}, err
	}
	widen, err := s.widener(ctx)
	if err != nil {
		return wire.TournamentResult{}, err
	}
	res, err := s.opt.Moves.Tournament(ctx, name, req, progress)
	var ids []string
	for _, b := range res.Branches {
		if b.ID != "" {
			ids = append(ids, b.ID)
		}
	}
	return res, errors.Join(err, widen(ids))
}

// widener returns a function that adds forks to the sandboxes of the caller's token. If they could not be added, a
// limited caller may not create any. The forks exist when it is called, so it ignores a disconnect of the client.
func (s *Server) widener(ctx context.Context) (func(ids []string) error, error) {
	p := auth.From(ctx)
	switch {
	case !limited(p):
		return func([]string) error { return nil }, nil
	case s.opt.Grants == nil:
		return nil, fault.New(fault.Denied, "a token that is limited to some sandboxes cannot see its forks here").
			WithHint("use a token without a limit")
	}
	return func(ids []string) error {
		if len(ids) == 0 {
			return nil
		}
		return s.opt.Grants.Widen(context.WithoutCancel(ctx), p.TokenID, ids)
	}, nil
}

// addCreate adds create, which accepts JSON, or a form with the parts "request" and "tar" that is read as a stream.
func (s *Server) addCreate(api huma.API) {
	op := replayable(
		created(operation("POST", "/v1/sandboxes", "createSandbox", "Create a sandbox", tagSandboxes, auth.Operate)))
	ref := schemaOf[wire.CreateRequest](api)
	answers(&op, http.StatusCreated, asJSON, "the sandbox", schemaOf[wire.Sandbox](api))
	answers(&op, http.StatusOK, ndjson,
		"one Event per line, if the client accepts them: progress, then the sandbox or an error", schemaOf[wire.Event](api))
	check := s.checker(api, ref)
	raw(s, api, op, func(_ *struct{}, w http.ResponseWriter, r *http.Request) {
		answerLong(s, http.StatusCreated, w, r, func(progress func(wire.Progress)) (wire.Sandbox, error) {
			return s.create(r, check, progress)
		})
	})
	takes(api, op, "a CreateRequest, alone or before an archive", map[string]*huma.MediaType{
		asJSON: {Schema: ref},
		"multipart/form-data": {Schema: &huma.Schema{Type: huma.TypeObject, Description: "the parts in this order",
			Properties: map[string]*huma.Schema{"request": ref, "tar": binary()}, Required: []string{"request", "tar"}}},
	})
}

func (s *Server) create(
	r *http.Request, check func(io.Reader, any) error, progress func(wire.Progress),
) (wire.Sandbox, error) {
	var req wire.CreateRequest
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind != "multipart/form-data" {
		if err := check(r.Body, &req); err != nil {
			return wire.Sandbox{}, err
		}
		if req.From.Kind == wire.SourceTar {
			return wire.Sandbox{}, fault.New(fault.Invalid, "no archive was sent").
				WithHint("send multipart/form-data with the parts \"request\" (JSON) and \"tar\"")
		}
		return s.opt.Sandboxes.Create(r.Context(), req, progress)
	}
	form, err := r.MultipartReader()
	if err != nil {
		return wire.Sandbox{}, fault.New(fault.Invalid, "read the form").Because(err)
	}
	for {
		part, err := form.NextPart()
		if err != nil {
			return wire.Sandbox{}, fault.New(fault.Invalid, "read the form up to its part \"tar\"").Because(err)
		}
		switch part.FormName() {
		case "request":
			if err := check(part, &req); err != nil {
				return wire.Sandbox{}, err
			}
		case "tar":
			if req.From.Kind == "" {
				req.From.Kind = wire.SourceTar
			}
			req.Tar = part
			return s.opt.Sandboxes.Create(r.Context(), req, progress)
		}
	}
}

// checker returns a function that parses a JSON document of a schema, as huma does for a request body. An empty
// document is the zero value.
func (s *Server) checker(api huma.API, ref *huma.Schema) func(io.Reader, any) error {
	registry := api.OpenAPI().Components.Schemas
	return func(body io.Reader, v any) error {
		b, err := io.ReadAll(io.LimitReader(body, maxJSON+1))
		switch {
		case err != nil:
			return fault.New(fault.Invalid, "read the request").Because(err)
		case len(b) > maxJSON:
			return fault.New(fault.Invalid, "the request is larger than %d bytes", maxJSON).WithHint("send a smaller request")
		case len(b) == 0:
			return nil
		}
		var any any
		res := &huma.ValidateResult{}
		if err := json.Unmarshal(b, &any); err != nil {
			res.Errors = append(res.Errors, &huma.ErrorDetail{Location: "body", Message: err.Error(), Value: ""})
		} else {
			huma.Validate(registry, ref, huma.NewPathBuffer([]byte("body"), len("body")), huma.ModeWriteToServer, any, res)
		}
		if len(res.Errors) == 0 {
			if err := json.Unmarshal(b, v); err != nil {
				res.Errors = append(res.Errors, &huma.ErrorDetail{Location: "body", Message: err.Error(), Value: ""})
			}
		}
		if len(res.Errors) == 0 {
			return nil
		}
		m := &huma.ErrorModel{Status: http.StatusBadRequest}
		for _, e := range res.Errors {
			m.Add(e)
		}
		return invalid(m)
	}
}

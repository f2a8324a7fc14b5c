package httpapi

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Tokens manages the tokens of callers over TCP. All errors carry a fault.Kind.
type Tokens interface {
	Create(ctx context.Context, req wire.TokenRequest) (wire.TokenResult, error)
	List(ctx context.Context) ([]wire.Token, error)
	// Revoke deletes a token by its ID, and ends requests in progress with it.
	Revoke(ctx context.Context, id string) error
}

func noTokens() error { return fault.New(fault.Unsupported, "this daemon does not use tokens") }

// addTokens adds the operations on tokens.
func (s *Server) addTokens(api huma.API) {
	plain(s, api,
		operation("GET", "/v1/tokens", "listTokens", "List the tokens for TCP access, without their secrets",
			tagDaemon, auth.Admin),
		func(ctx context.Context, _ *struct{}) (wire.TokensResult, error) { return s.listTokens(ctx) })
	plain(s, api,
		created(operation("POST", "/v1/tokens", "createToken", "Create a token; only this response has its secret",
			tagDaemon, auth.Admin)),
		func(ctx context.Context, in *struct{ Body wire.TokenRequest }) (wire.TokenResult, error) {
			return s.createToken(ctx, in.Body)
		})
	silent(s, api,
		operation("DELETE", "/v1/tokens/{id}", "revokeToken", "Revoke a token and close its connections",
			tagDaemon, auth.Admin),
		func(ctx context.Context, in *struct {
			ID string `path:"id" doc:"id of the token"`
		}) error {
			return s.revokeToken(ctx, in.ID)
		})
}

func (s *Server) createToken(ctx context.Context, req wire.TokenRequest) (wire.TokenResult, error) {
	if s.opt.Tokens == nil {
		return wire.TokenResult{}, noTokens()
	}
	return s.opt.Tokens.Create(ctx, req)
}

func (s *Server) listTokens(ctx context.Context) (res wire.TokensResult, err error) {
	if s.opt.Tokens == nil {
		return res, noTokens()
	}
	res.Tokens, err = s.opt.Tokens.List(ctx)
	return res, err
}

func (s *Server) revokeToken(ctx context.Context, id string) error {
	if s.opt.Tokens == nil {
		return noTokens()
	}
	return s.opt.Tokens.Revoke(ctx, id)
}

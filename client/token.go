package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/coppice-dev/coppice/client/wire"
)

// CreateToken makes a bearer token for the daemon's API over TCP. Its secret is in
// the result, and is never told again.
func (c *Client) CreateToken(ctx context.Context, req wire.TokenRequest) (wire.TokenResult, error) {
	return post[wire.TokenResult](ctx, c, "/v1/tokens", req)
}

// Tokens gives all tokens, oldest first, also those that have expired.
func (c *Client) Tokens(ctx context.Context) ([]wire.Token, error) {
	res, err := get[wire.TokensResult](ctx, c, "/v1/tokens")
	return res.Tokens, err
}

// RevokeToken forgets a token by its id. What is under way with it ends.
func (c *Client) RevokeToken(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/tokens/"+url.PathEscape(id), nil, nil)
}

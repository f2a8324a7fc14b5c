package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/coppice-dev/coppice/client/wire"
)

// CreateToken creates a bearer token for the daemon's API over TCP. Its secret is returned only here.
func (c *Client) CreateToken(ctx context.Context, req wire.TokenRequest) (wire.TokenResult, error) {
	return post[wire.TokenResult](ctx, c, "/v1/tokens", req)
}

// Tokens returns all tokens, including expired ones, oldest first.
func (c *Client) Tokens(ctx context.Context) ([]wire.Token, error) {
	res, err := get[wire.TokensResult](ctx, c, "/v1/tokens")
	return res.Tokens, err
}

// RevokeToken revokes a token by its ID. Requests in progress with it are ended.
func (c *Client) RevokeToken(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/tokens/"+url.PathEscape(id), nil, nil)
}

package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/coppice-dev/coppice/client/wire"
)

// Grants lists the grants of a sandbox, by name, including those that are no longer live.
func (c *Client) Grants(ctx context.Context, name string) ([]wire.Grant, error) {
	res, err := get[wire.GrantsResult](ctx, c, at(name)+"/grants")
	return res.Grants, err
}

// Grant gives a sandbox a grant, or replaces its grant of that name. It takes effect immediately if the sandbox is
// running. Errors: KindConflict if a running sandbox was started without the gate's authority, KindUnavailable if the
// broker does not run, KindUnsupported if the tier or a site of the grant is not supported.
func (c *Client) Grant(ctx context.Context, name, grant string, spec wire.GrantSpec) (wire.Grant, error) {
	var res wire.Grant
	err := c.call(ctx, http.MethodPut, at(name)+"/grants/"+url.PathEscape(grant), spec, &res)
	return res, err
}

// Revoke revokes a grant. When it returns, no request carries the secret, and connections that used it are closed. It
// does nothing if the grant is not live. KindNotFound: the sandbox never had it.
func (c *Client) Revoke(ctx context.Context, name, grant string) error {
	return c.call(ctx, http.MethodDelete, at(name)+"/grants/"+url.PathEscape(grant), nil, nil)
}

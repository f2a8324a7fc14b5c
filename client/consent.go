package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/coppice-dev/coppice/client/wire"
)

// Consents lists the consents to grants that policy files of projects request, by directory and name.
func (c *Client) Consents(ctx context.Context) ([]wire.Consent, error) {
	res, err := get[wire.ConsentsResult](ctx, c, "/v1/consents")
	return res.Consents, err
}

// Consent consents to requested grants, and returns the consents. It is recorded in the audit log. KindInvalid if the
// files do not request one of them.
func (c *Client) Consent(ctx context.Context, req wire.ConsentRequest) ([]wire.Consent, error) {
	var res wire.ConsentsResult
	err := c.call(ctx, http.MethodPost, "/v1/consents", req, &res)
	return res.Consents, err
}

// RevokeConsent ends a consent. Sandboxes that have the grant keep it. KindNotFound: the daemon has no consent with
// that digest.
func (c *Client) RevokeConsent(ctx context.Context, digest string) error {
	return c.call(ctx, http.MethodDelete, "/v1/consents/"+url.PathEscape(digest), nil, nil)
}

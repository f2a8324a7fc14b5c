package httpapi

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
)

// Granting names a grant of a sandbox.
type Granting struct {
	Named
	Grant string `path:"grant" doc:"name of the grant"`
}

// addGrants adds the operations on grants.
func (s *Server) addGrants(api huma.API) {
	const at = box + "/grants"
	plain(s, api, operation("GET", at, "grants", "List the grants of a sandbox", tagNet, auth.Read),
		func(ctx context.Context, in *Named) (wire.GrantsResult, error) {
			return s.opt.Secrets.ListGrants(ctx, in.Name)
		})
	plain(s, api,
		operation("PUT", at+"/{grant}", "giveGrant", "Let requests of a sandbox carry a secret", tagNet, auth.Admin),
		func(ctx context.Context, in *struct {
			Granting
			Body wire.GrantSpec
		}) (wire.Grant, error) {
			return s.opt.Secrets.GiveGrant(ctx, in.Name, in.Grant, in.Body)
		})
	silent(s, api, operation("DELETE", at+"/{grant}", "revokeGrant", "Revoke a grant", tagNet, auth.Admin),
		func(ctx context.Context, in *Granting) error {
			return s.opt.Secrets.RevokeGrant(ctx, in.Name, in.Grant)
		})
	s.addConsents(api)
}

// addConsents adds the operations on consents to grants that policy files of projects request.
func (s *Server) addConsents(api huma.API) {
	const at = "/v1/consents"
	plain(s, api, operation("GET", at, "consents", "List consents to requested grants", tagNet, auth.Admin),
		func(ctx context.Context, _ *struct{}) (wire.ConsentsResult, error) {
			return s.opt.Secrets.ListConsents(ctx)
		})
	plain(s, api, operation("POST", at, "consent", "Consent to grants that a policy file requests", tagNet, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.ConsentRequest }) (wire.ConsentsResult, error) {
			return s.opt.Secrets.Consent(ctx, in.Body)
		})
	silent(s, api, operation("DELETE", at+"/{digest}", "revokeConsent", "End a consent", tagNet, auth.Admin),
		func(ctx context.Context, in *struct {
			Digest string `path:"digest" doc:"digest of the consent"`
		}) error {
			return s.opt.Secrets.RevokeConsent(ctx, in.Digest)
		})
}

package httpapi

import (
	"context"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

// guard passes a request to its operation if its principal may carry it out.
func (s *Server) guard(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	if err := s.admit(r, ctx.Operation()); err != nil {
		s.fail(w, r, err)
		return
	}
	next(&exchange{humaContext: ctx})
}

// admit checks the principal of r. For a limited principal it replaces the sandbox name in the path with the ID,
// so that no other sandbox can take the name meanwhile.
func (s *Server) admit(r *http.Request, op *huma.Operation) error {
	need, ok := op.Metadata[metaScope].(auth.Scope)
	if !ok {
		return nil
	}
	p := auth.From(r.Context())
	name := r.PathValue("name")
	switch {
	case limited(p) && name != "":
		id, err := s.reach(r.Context(), need, name)
		if err != nil {
			return err
		}
		r.SetPathValue("name", id)
		return nil
	case limited(p) && op.Metadata[metaEach] != nil:
		p.Sandboxes = nil // the operation leaves out what the principal does not see
	}
	return p.Check(need, "")
}

// reach returns how to refer to a sandbox, if the principal has the scope need for it. To a limited principal, a
// sandbox that it does not see does not exist.
func (s *Server) reach(ctx context.Context, need auth.Scope, name string) (string, error) {
	p := auth.From(ctx)
	if !limited(p) {
		return name, p.Check(need, "")
	}
	all := p
	if all.Sandboxes = nil; all.Check(need, "") != nil {
		return "", all.Check(need, "")
	}
	sb, err := s.opt.Sandboxes.Sandbox(ctx, name)
	if err == nil {
		err = p.Check(need, sb.ID)
	}
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Ambiguous) {
		return "", fault.New(fault.NotFound, "sandbox %q not found", name).
			WithHint("list them: GET /v1/sandboxes")
	}
	return sb.ID, err
}

// limited reports whether p sees only some sandboxes.
func limited(p auth.Principal) bool { return p.Sandboxes != nil }

// sees reports whether p sees the sandbox with the given ID.
func sees(p auth.Principal, id string) bool { return !limited(p) || slices.Contains(p.Sandboxes, id) }

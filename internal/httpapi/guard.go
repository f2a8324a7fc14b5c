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

// guard lets a request through to an operation that its principal may carry out.
func (s *Server) guard(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	if err := s.admit(r, ctx.Operation()); err != nil {
		s.fail(w, r, err)
		return
	}
	next(&exchange{humaContext: ctx})
}

// admit checks the principal of r. For a limited one the sandbox of the path is
// from then on named by its id, so that no other can take its name meanwhile.
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
		p.Sandboxes = nil // what it does not see is left out
	}
	return p.Check(need, "")
}

// reach gives what to call a sandbox by, when the principal may do what needs this
// scope to it. One that it does not see is to it as one that there is not.
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

// limited reports whether p sees some sandboxes alone.
func limited(p auth.Principal) bool { return p.Sandboxes != nil }

// sees reports whether p sees the sandbox with this id.
func sees(p auth.Principal, id string) bool { return !limited(p) || slices.Contains(p.Sandboxes, id) }

// Package auth authenticates callers and decides what they may do: scopes, principals, bearer tokens, and the
// guard of a TCP listener. Tokens are persisted by a Store. httpapi, ports and daemon import it.
//
// A guard checks these properties of a request, in this order:
//
//	number of connections    beyond the limit, the oldest unauthenticated one is closed
//	method, Host             400, 421: another name may be that of another site (DNS rebinding)
//	host of a preview        goes to Options.Preview, which checks its own keys
//	Origin, Sec-Fetch-Site   403: a page of another site
//	open paths               pass with the zero principal, which has no rights
//	Authorization            401, and 429 for an address that guesses tokens
//	rate of a token          429
package auth

import (
	"context"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Scope is the extent of a principal's rights. Each scope includes the lower ones; the zero Scope has no rights.
type Scope int

// The scopes.
const (
	Read    Scope = iota + 1 // read: state, history, files, events
	Operate                  // run commands, write files, rewind, create, fork, remove
	Admin                    // tokens, gc, the whole store, the daemon
)

// String returns the name that ParseScope parses; "none" for the zero Scope.
func (s Scope) String() string {
	switch s {
	case Read:
		return "read"
	case Operate:
		return "operate"
	case Admin:
		return "admin"
	}
	return "none"
}

// ParseScope parses the name of a scope. The error is Invalid.
func ParseScope(name string) (Scope, error) {
	for s := Read; s <= Admin; s++ {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, fault.New(fault.Invalid, "unknown scope %q", name).WithHint("the scopes are read, operate and admin")
}

// Principal is the caller of a request. The zero Principal has no rights.
type Principal struct {
	TokenID string // "" without a token
	Scope   Scope
	// Sandboxes are the IDs of the visible sandboxes. nil means all, and an empty slice none.
	Sandboxes []string
}

// Owner returns the user that the daemon runs as: every process that can connect to the Unix socket.
func Owner() Principal { return Principal{Scope: Admin} }

// Limited reports whether p sees only some sandboxes.
func (p Principal) Limited() bool { return p.Sandboxes != nil }

// Sees reports whether p sees a sandbox, by ID.
func (p Principal) Sees(sandboxID string) bool {
	return p.Scope >= Read && (!p.Limited() || slices.Contains(p.Sandboxes, sandboxID))
}

// Allows checks only the scope, for operations that filter sandboxes themselves, such as lists. The error is Denied.
func (p Principal) Allows(need Scope) error {
	switch {
	case need >= Read && need <= p.Scope && p.Scope <= Admin:
		return nil
	case p.Scope < Read || p.Scope > Admin:
		return fault.New(fault.Denied, "a token is required").WithHint("create one: coppice token create NAME")
	}
	return fault.New(fault.Denied, "scope %s is required, but the token has %s", need, p.Scope).
		WithHint("create another token: coppice token create NAME --scope %s", need)
}

// Check checks whether p has a scope for a sandbox, or with sandboxID "" for the daemon as a whole, for which a
// limited principal has no rights. The errors are Denied, and NotFound for a sandbox that p may not see.
func (p Principal) Check(need Scope, sandboxID string) error {
	if p.Limited() && p.Scope >= Read {
		if sandboxID == "" {
			return fault.New(fault.Denied, "the token is limited to some sandboxes, and the operation concerns the whole "+
				"daemon").
				WithHint("create another token, without --sandbox: coppice token create NAME --scope %s", need)
		}
		if !p.Sees(sandboxID) {
			return NoSandbox(sandboxID)
		}
	}
	return p.Allows(need)
}

// NoSandbox returns the error for a sandbox that a limited principal may not see: the same as for one that does not
// exist.
func NoSandbox(name string) error {
	return fault.New(fault.NotFound, "sandbox %q not found among those of this token", name).
		WithHint("list them: coppice ls")
}

type principalKey struct{}

// With puts a principal into a context.
func With(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// From returns the principal of a context, or the zero Principal.
func From(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}

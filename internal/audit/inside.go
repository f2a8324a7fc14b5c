package audit

import "context"

// insideKey is the context key of what is requested from inside a sandbox.
type insideKey struct{}

// FromInside returns a context for what is requested from inside a sandbox.
func FromInside(ctx context.Context) context.Context {
	return context.WithValue(ctx, insideKey{}, true)
}

// Inside reports whether something is requested from inside a sandbox: see FromInside.
func Inside(ctx context.Context) bool { return ctx.Value(insideKey{}) != nil }

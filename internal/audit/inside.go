package audit

import "context"

// insideKey is the context key of FromInside.
type insideKey struct{}

// FromInside returns a context for a request from inside a sandbox.
func FromInside(ctx context.Context) context.Context {
	return context.WithValue(ctx, insideKey{}, true)
}

// Inside reports whether ctx belongs to a request from inside a sandbox: see FromInside.
func Inside(ctx context.Context) bool { return ctx.Value(insideKey{}) != nil }

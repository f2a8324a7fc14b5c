package store

import (
	"context"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Env reads variables of an environment.
type Env struct {
	readOnly
	lookup func(name string) (string, bool)
}

// NewEnv returns the store of the variables that lookup returns, such as those of the client of a request. lookup must
// be safe for concurrent use.
func NewEnv(lookup func(name string) (string, bool)) *Env {
	return &Env{readOnly{"an environment", "export the variable in your shell, then run the command there"}, lookup}
}

// Get implements Store for the variable ref.Name.
func (e *Env) Get(_ context.Context, ref Ref) (Value, error) {
	if err := checkVariable(ref.Name); err != nil {
		return Value{}, err
	}
	s, ok := e.lookup(ref.Name)
	if !ok {
		return Value{}, fault.New(fault.NotFound, "variable %s is not set", ref.Name).
			WithHint("set it in your shell: export %s=...", ref.Name)
	}
	v, err := newValue(withoutNewline([]byte(s)))
	if err != nil {
		return Value{}, fault.Wrap(err, "variable %s", ref.Name)
	}
	return v, nil
}

// Check implements Store. It returns nil.
func (e *Env) Check(context.Context) error { return nil }

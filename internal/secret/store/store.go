package store

import (
	"context"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Store is a place where secrets are kept. Implementations are safe for concurrent use.
type Store interface {
	// Get returns the value of a secret. The caller closes it. A dynamic secret is created by each call; the caller
	// revokes it.
	Get(ctx context.Context, ref Ref) (Value, error)
	// Put stores a value, which it neither keeps nor changes. It returns Unsupported if the store is read-only. After
	// an error or a crash, the store has the old or the new value.
	Put(ctx context.Context, ref Ref, value []byte) error
	// Delete removes a secret. It returns NotFound if there is none, and Unsupported if the store is read-only.
	Delete(ctx context.Context, ref Ref) error
	// Check reports why the store could not serve any secret, without reading one.
	Check(ctx context.Context) error
}

// Ref names a secret in one store. Each store uses some of the fields.
type Ref struct {
	Name  string   // age: the name of the secret; env: that of the variable
	Kind  string   // age: the kind of the secret, which Put stores and Get does not use
	From  string   // age: a source, likewise: the value is then what is required to read it
	Path  string   // file: an absolute path; vault: MOUNT/PATH
	Field string   // file: a JSON pointer, or "" for the whole file; vault: the field
	Argv  []string // command: the program and its arguments
	First bool     // command: the value is the first line of the output
}

// maxName is the maximum length of a secret's name, in bytes.
const maxName = 64

// CheckName returns Invalid if name cannot be that of a secret: 1 to 64 of a-z 0-9 - _, the first a letter or a digit.
func CheckName(name string) error {
	hint := "use 1 to 64 of a-z 0-9 - _ and begin with a letter or digit, for example github-token"
	switch {
	case name == "":
		return fault.New(fault.Invalid, "the name of the secret is empty").WithHint("%s", hint)
	case len(name) > maxName:
		return fault.New(fault.Invalid, "invalid name of a secret %.20q...: longer than %d bytes", name, maxName).
			WithHint("%s", hint)
	}
	for i, c := range name {
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || !strings.ContainsRune("-_", c)) {
			return fault.New(fault.Invalid, "invalid name of a secret %q: %q is not allowed at position %d", name, c, i+1).
				WithHint("%s", hint)
		}
	}
	return nil
}

// readOnly is embedded by stores that cannot be written.
type readOnly struct{ name, how string }

// Put implements Store. It returns Unsupported.
func (r readOnly) Put(context.Context, Ref, []byte) error {
	return fault.New(fault.Unsupported, "cannot write to %s", r.name).WithHint("%s", r.how)
}

// Delete implements Store. It returns Unsupported.
func (r readOnly) Delete(context.Context, Ref) error {
	return fault.New(fault.Unsupported, "cannot delete from %s", r.name).WithHint("%s", r.how)
}

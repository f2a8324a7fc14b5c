package store

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// MaxValue is the maximum size of a value, in bytes.
const MaxValue = 16 << 10

// hidden is what a Value prints as.
const hidden = "[secret]"

// Value is the value of a secret. It prints as "[secret]" in every format. Copies share their bytes: after Close of
// one, none has any. A Value and its copies may be used by one goroutine at a time.
type Value struct {
	// Until is when the value expires; zero: the store does not know.
	Until time.Time
	// User is the user name that belongs to the value, which is not secret; "" if there is none. For credentials of
	// AWS it is the access key's id.
	User string

	// inner returns the bytes. fmt calls no method of a Value in an unexported field of another struct, and may follow a
	// pointer in it, but never calls a function.
	inner func() *held
}

type held struct {
	bytes []byte
	lease lease
}

// lease is a value that its store takes back, and may extend.
type lease interface {
	id() string
	// again returns when to renew the lease; zero: never.
	again() time.Time
	// renew extends the lease, and returns when it ends.
	renew(ctx context.Context) (time.Time, error)
	revoke(ctx context.Context) error
}

// newValue returns the value of raw, which it takes over, or an error of CheckValue, after which raw is wiped.
func newValue(raw []byte) (Value, error) {
	if err := CheckValue(raw); err != nil {
		wipe(raw)
		return Value{}, err
	}
	h := &held{bytes: raw}
	return Value{inner: func() *held { return h }}, nil
}

// held returns what is behind v, or nil for the zero Value.
func (v Value) held() *held {
	if v.inner == nil {
		return nil
	}
	return v.inner()
}

// Bytes returns the value, which is valid until Close. The caller must not change it.
func (v Value) Bytes() []byte {
	if v.held() == nil {
		return nil
	}
	return v.held().bytes
}

// Clone returns a copy of v with bytes of its own, and without its lease.
func (v Value) Clone() Value {
	from := v.held()
	if from == nil {
		return Value{Until: v.Until, User: v.User}
	}
	h := &held{bytes: bytes.Clone(from.bytes)}
	return Value{Until: v.Until, User: v.User, inner: func() *held { return h }}
}

// Close wipes the bytes. It may be called twice. It does not revoke a lease.
func (v Value) Close() {
	if v.held() != nil {
		wipe(v.held().bytes)
		v.held().bytes = nil
	}
}

// Lease returns the id of the lease under which a dynamic secret was given, or "". It is not secret. A caller that
// stores it can revoke the lease with Vault.Revoke after a crash.
func (v Value) Lease() string {
	if v.held() == nil || v.held().lease == nil {
		return ""
	}
	return v.held().lease.id()
}

// RenewAt returns when to call Renew: after two thirds of the lease. It returns the zero time if there is no lease, or
// one that does not end.
func (v Value) RenewAt() time.Time {
	if v.held() == nil || v.held().lease == nil {
		return time.Time{}
	}
	return v.held().lease.again()
}

// Renew extends the lease, and sets Until. An Until that hardly moves says that the lease has reached its maximum, and
// Unavailable that it cannot be extended: the caller then gets a new value. Renew returns Unsupported if there is no
// lease.
func (v *Value) Renew(ctx context.Context) error {
	if v.Lease() == "" {
		return fault.New(fault.Unsupported, "the secret has no lease")
	}
	until, err := v.held().lease.renew(ctx)
	if err == nil {
		v.Until = until
	}
	return err
}

// Revoke ends the lease, after which the value is worth nothing. Without a lease, it does nothing.
func (v Value) Revoke(ctx context.Context) error {
	if v.Lease() == "" {
		return nil
	}
	return v.held().lease.revoke(ctx)
}

// String implements fmt.Stringer.
func (v Value) String() string { return hidden }

// GoString implements fmt.GoStringer.
func (v Value) GoString() string { return hidden }

// Format implements fmt.Formatter for all verbs.
func (v Value) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, hidden) }

// MarshalText implements encoding.TextMarshaler.
func (v Value) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// MarshalJSON implements json.Marshaler.
func (v Value) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }

// LogValue implements slog.LogValuer.
func (v Value) LogValue() slog.Value { return slog.StringValue(hidden) }

// CheckValue returns Invalid, or TooLarge, if b cannot be a value: 1 byte to 16 KiB, without control bytes, and not of
// spaces alone. A newline would end a header of HTTP, and an empty value would be found everywhere. The error does not
// contain the value.
func CheckValue(b []byte) error {
	switch {
	case len(b) == 0:
		return fault.New(fault.Invalid, "the value is empty")
	case len(b) > MaxValue:
		return fault.New(fault.TooLarge, "the value is longer than %d KiB", MaxValue>>10)
	case len(bytes.TrimSpace(b)) == 0:
		return fault.New(fault.Invalid, "the value consists of spaces")
	}
	for i, c := range b {
		switch {
		case c == '\n' || c == '\r':
			return fault.New(fault.Invalid, "invalid value: a line ends after %d bytes", i).
				WithHint("store one line; of a file with several, such as JSON, choose a field: file:PATH#/FIELD")
		case c < ' ' || c == 0x7f:
			return fault.New(fault.Invalid, "invalid value: byte %d is a control character", i+1)
		}
	}
	return nil
}

// withoutNewline returns b without one newline at its end.
func withoutNewline(b []byte) []byte {
	if rest, ok := bytes.CutSuffix(b, []byte("\r\n")); ok {
		return rest
	}
	return bytes.TrimSuffix(b, []byte("\n"))
}

// wipe overwrites b up to its capacity.
func wipe(b []byte) { clear(b[:cap(b)]) }

package line

import (
	"fmt"
	"io"
	"log/slog"
	"time"
)

// Value is the value of a secret. It prints as "[secret]" in every format. Copies share their bytes.
type Value struct {
	// Bytes belongs to the receiver, until Close.
	Bytes []byte
	// Until is when the receiver must forget the value: at most a minute after it was sent.
	Until time.Time
	// Version differs for different values of a grant.
	Version int64

	drops uint64 // of the grant, before the value came
}

// hidden is what a Value prints as.
const hidden = "[secret]"

// Close wipes the bytes. It may be called twice.
func (v Value) Close() { clear(v.Bytes[:cap(v.Bytes)]) }

// String implements fmt.Stringer.
func (v Value) String() string { return hidden }

// GoString implements fmt.GoStringer.
func (v Value) GoString() string { return hidden }

// Format implements fmt.Formatter for all verbs.
func (v Value) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, hidden) }

// MarshalText implements encoding.TextMarshaler.
func (v Value) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue implements slog.LogValuer.
func (v Value) LogValue() slog.Value { return slog.StringValue(hidden) }

package timeline

import (
	"encoding/hex"
	"io"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Lengths of identifiers, in hexadecimal digits.
const (
	sandboxDigits  = 12
	snapshotDigits = 12
	layerDigits    = 16

	// MinPrefix is the minimum length of a prefix of a snapshot's id in a reference.
	MinPrefix = 4
)

// NewSandboxID draws an id from rand, which is crypto/rand.Reader outside tests.
func NewSandboxID(rand io.Reader) (SandboxID, error) {
	s, err := draw(rand, sandboxDigits)
	return SandboxID(s), err
}

// NewSnapshotID draws an id from rand, which is crypto/rand.Reader outside tests.
func NewSnapshotID(rand io.Reader) (SnapshotID, error) {
	s, err := draw(rand, snapshotDigits)
	return SnapshotID(s), err
}

// NewLayerID draws an id from rand, which is crypto/rand.Reader outside tests.
func NewLayerID(rand io.Reader) (LayerID, error) {
	s, err := draw(rand, layerDigits)
	return LayerID(s), err
}

// ParseSandboxID accepts exactly the output of NewSandboxID. The error is Invalid.
func ParseSandboxID(s string) (SandboxID, error) {
	if !isHex(s, sandboxDigits) {
		return "", fault.New(fault.Invalid, "invalid sandbox id %q: must be %d lower-case hexadecimal "+
			"digits", s, sandboxDigits)
	}
	return SandboxID(s), nil
}

// ParseSnapshotID accepts exactly the output of NewSnapshotID. The error is Invalid. Use History.Resolve for
// references that users type.
func ParseSnapshotID(s string) (SnapshotID, error) {
	if !isHex(s, snapshotDigits) {
		return "", fault.New(fault.Invalid, "invalid snapshot id %q: must be %d lower-case hexadecimal "+
			"digits", s, snapshotDigits)
	}
	return SnapshotID(s), nil
}

// ParseLayerID accepts exactly the output of NewLayerID. The error is Invalid.
func ParseLayerID(s string) (LayerID, error) {
	if !isHex(s, layerDigits) {
		return "", fault.New(fault.Invalid, "invalid layer id %q: must be %d lower-case hexadecimal digits", s, layerDigits)
	}
	return LayerID(s), nil
}

// draw reads digits/2 random bytes. An id may consist of decimal digits only: it is never parsed as a number.
func draw(rand io.Reader, digits int) (string, error) {
	b := make([]byte, digits/2)
	if _, err := io.ReadFull(rand, b); err != nil {
		return "", fault.Wrap(err, "generate a random id")
	}
	return hex.EncodeToString(b), nil
}

// isHex reports whether s is exactly n lower-case hexadecimal digits.
func isHex(s string, n int) bool { return len(s) == n && allHex(s) }

// allHex reports whether s is lower-case hexadecimal digits only.
func allHex(s string) bool {
	return strings.Trim(s, "0123456789abcdef") == ""
}

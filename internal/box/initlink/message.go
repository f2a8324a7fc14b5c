//go:build linux

package initlink

import (
	"bytes"
	"encoding/json"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

const (
	maxMessage = 16 << 20 // bytes of a payload
	maxFDs     = 4 + rootspec.MaxShared
)

// Message is one received message. The receiver owns the descriptors.
type Message struct {
	Kind    Kind
	Payload []byte
	FDs     []int
}

// Decode reads the payload into v.
func (m Message) Decode(v any) error {
	if err := json.Unmarshal(m.Payload, v); err != nil {
		return fmt.Errorf("message %q: %w", m.Kind, err)
	}
	return nil
}

// Obey is Decode for a receiver that carries out what the payload says. It refuses a payload
// with unknown fields, since an init may be of an older build than its keeper and would ignore
// them.
func (m Message) Obey(v any) error {
	d := json.NewDecoder(bytes.NewReader(m.Payload))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return Older("does not support all fields of message %q", byte(m.Kind)).Because(err)
	}
	return nil
}

// Close closes the descriptors.
func (m Message) Close() {
	for _, fd := range m.FDs {
		_ = unix.Close(fd)
	}
}

// checkSize refuses a message that is too large.
func (m Message) checkSize() error {
	if len(m.Payload) > maxMessage || len(m.FDs) > maxFDs {
		return fmt.Errorf("%d bytes with %d descriptors are too large", len(m.Payload), len(m.FDs))
	}
	return nil
}

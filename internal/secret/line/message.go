package line

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Bounds of a message, in bytes.
const (
	maxHead  = 4 << 10 // with its newline
	maxValue = 16 << 10
	maxText  = maxHead + maxValue
	maxSign  = 4 << 10 // of data to sign
	maxName  = 64      // of a grant
	maxHost  = 255     // DNS
	maxPath  = 512     // longer paths are cut: in JSON, a byte takes up to six
	maxWhy   = 300     // of a reason or a hint, likewise
)

// message is what either end says. Exactly one of Ticket, OK, Get, Sign, Is, Not and Drop is
// set.
type message struct {
	Ticket []byte `json:"ticket,omitempty"`
	OK     bool   `json:"ok,omitempty"`
	Get    string `json:"get,omitempty"`
	Sign   string `json:"sign,omitempty"`
	Is     string `json:"is,omitempty"`
	Not    string `json:"not,omitempty"`
	Drop   string `json:"drop,omitempty"`

	ID uint64 `json:"id,omitempty"` // of Get, Sign, Is and Not

	Host   string `json:"host,omitempty"` // of Get and Sign
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`

	Until   time.Time `json:"until,omitzero"` // of Is
	Version int64     `json:"version,omitempty"`

	Why   string `json:"why,omitempty"` // of Not
	Hint  string `json:"hint,omitempty"`
	Retry int    `json:"retry,omitempty"` // seconds after which it may succeed; 0: it will not
}

// theLine is what Not names where a ticket is refused.
const theLine = "line"

// check returns an error if m and value are not a message.
func (m message) check(value []byte) error {
	verbs := 0
	for _, is := range []bool{m.Ticket != nil, m.OK, m.Get != "", m.Sign != "", m.Is != "", m.Not != "", m.Drop != ""} {
		if is {
			verbs++
		}
	}
	switch {
	case verbs != 1, max(len(m.Get), len(m.Sign), len(m.Is), len(m.Not), len(m.Drop)) > maxName,
		len(m.Host) > maxHost, m.Retry < 0,
		m.Get+m.Sign+m.Is != "" && m.ID == 0, m.Is != "" && m.Until.IsZero(), m.Is != "" && len(value) == 0,
		m.Is+m.Sign == "" && len(value) > 0, m.Sign != "" && len(value) > maxSign,
		len(value) > maxValue:
		return errMessage()
	}
	return nil
}

func errMessage() error {
	return fault.New(fault.Internal, "invalid message on the line to the broker")
}

// encode returns the bytes of a message. The caller wipes those with a value.
func (m message) encode(value []byte) ([]byte, error) {
	if err := m.check(value); err != nil {
		return nil, err
	}
	head, err := json.Marshal(m)
	if err != nil || len(head)+1 > maxHead {
		return nil, errMessage()
	}
	b := make([]byte, 0, len(head)+1+len(value))
	return append(append(append(b, head...), '\n'), value...), nil
}

// decode parses a message. The value refers to b. Errors have no part of it.
func decode(b []byte) (m message, value []byte, err error) {
	head, value, ok := bytes.Cut(b[:min(len(b), maxText)], []byte("\n"))
	if !ok || len(b) > maxText || len(head)+1 > maxHead {
		return message{}, nil, errMessage()
	}
	dec := json.NewDecoder(bytes.NewReader(head))
	dec.DisallowUnknownFields()
	if dec.Decode(&m) != nil || dec.More() || m.check(value) != nil {
		return message{}, nil, errMessage()
	}
	return m, value, nil
}

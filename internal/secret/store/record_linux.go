package store

import (
	"bytes"
	"encoding/json"
	"time"

	"filippo.io/age"

	"github.com/coppice-dev/coppice/internal/fault"
)

// The decrypted content of a secret's file: the title, and a record as JSON.
const (
	titleOf = "coppice-secret "
	title   = titleOf + "1\n"
)

// record is a secret. Name binds the file to the secret: a file that is copied to the name of another one is refused.
type record struct {
	Name    string    `json:"name"`
	Kind    string    `json:"kind"`
	From    string    `json:"from,omitempty"`
	Value   []byte    `json:"value"` // base64
	Created time.Time `json:"created"`
	Rotated time.Time `json:"rotated"`
}

// seal encrypts r for all recipients.
func (r record) seal(recipients []age.Recipient) ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	defer wipe(b)
	var out bytes.Buffer
	w, err := age.Encrypt(&out, recipients...)
	if err != nil {
		return nil, err
	}
	if _, err = w.Write([]byte(title)); err == nil {
		_, err = w.Write(b)
	}
	if err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if out.Len() > maxFile {
		return nil, fault.New(fault.TooLarge, "the secret and its recipients need more than %d KiB", maxFile>>10)
	}
	return out.Bytes(), nil
}

// parseRecord parses what seal encrypted. It returns Version for a later format, and Corrupt for anything else.
func parseRecord(b []byte) (r record, err error) {
	body, ok := bytes.CutPrefix(b, []byte(title))
	if !ok {
		if line, _, _ := bytes.Cut(b, []byte("\n")); bytes.HasPrefix(line, []byte(titleOf)) {
			return record{}, fault.New(fault.Version, "unknown version of a secret: must be %.20q", title).
				WithHint("use the version of coppice that stored it")
		}
		return record{}, fault.New(fault.Corrupt, "it is not a secret")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if dec.Decode(&r) != nil || dec.More() {
		wipe(r.Value)
		return record{}, fault.New(fault.Corrupt, "it is damaged")
	}
	return r, nil
}

package journal

import (
	"encoding/json"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/secretbox"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// Place is where a journal is.
type Place struct {
	Dir string
	// Key is the secret of the key, for package secretbox, that encrypts lines; nil leaves them in cleartext, and
	// reads no others.
	Key []byte
	// FS is the file system to write through; nil: the real one.
	FS vfs.FS
}

// forLine is the purpose for which lines are encrypted.
const forLine = "event"

// key returns the key of a place; the zero Key if it has none.
func (p Place) key() (secretbox.Key, error) {
	if len(p.Key) == 0 {
		return secretbox.Key{}, nil
	}
	return secretbox.New(p.Key)
}

// line returns the line of an event's JSON, without its newline.
func (p Place) line(key secretbox.Key, event []byte) ([]byte, error) {
	if len(p.Key) == 0 {
		return event, nil
	}
	s, err := key.Seal(forLine, event)
	return []byte(s), err
}

// decode reads a line; ok is false if it is not an event. A line in cleartext comes from a version without keys.
func decode(key secretbox.Key, line []byte) (ev wire.NetEvent, ok bool) {
	if len(line) >= maxLine {
		return ev, false
	}
	if text := string(line); secretbox.Is(text) {
		var err error
		if line, err = key.Open(forLine, text); err != nil {
			return ev, false
		}
	}
	return ev, json.Unmarshal(line, &ev) == nil && ev.Kind != ""
}

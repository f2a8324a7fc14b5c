package ledger

import (
	"errors"
	"io/fs"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// WriteBlob stores a redacted capture of a sandbox, and returns its name for records. The capture is durable once a
// later Append has returned without an error; until then a crash may lose it. It can be read at once. Without the
// ledger's key, the name reveals nothing about the content. Equal contents have equal names.
func (l *Ledger) WriteBlob(id format.Sandbox, content []byte) (string, error) {
	if !id.Valid() || len(content) > format.MaxBlob {
		return "", fault.New(fault.Invalid, "invalid capture: %d bytes of %.80q: the limit is %d", len(content), string(id),
			format.MaxBlob)
	}
	_, hash := l.naming.blob(id, content)
	one := &capture{id: id, name: hash.String(), content: content}
	l.blobs.Lock()
	defer l.blobs.Unlock()
	if l.kept(one.file()) || l.captures.hold(one) {
		return one.name, nil
	}
	err := l.mkdir(parent(one.file()))
	if err == nil {
		err = l.replace(one.file(), content)
	}
	return one.name, fault.Wrap(err, "store a capture of %s", id)
}

// kept reports whether the file of a capture is complete.
func (l *Ledger) kept(file string) bool {
	if _, held := l.captures.get(file); held {
		return false
	}
	_, err := l.stat(file)
	return err == nil
}

// BlobSize returns the size of a capture in bytes; 0 if it is no longer kept.
func (l *Ledger) BlobSize(id format.Sandbox, name string) (int64, error) {
	file := captureFile(id, name)
	if content, held := l.captures.get(file); held {
		return int64(len(content)), nil
	}
	info, err := l.stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fault.Wrap(err, "measure a capture of %s", id)
	}
	return info.Size(), nil
}

// ReadBlob returns a capture as it was stored.
func (l *Ledger) ReadBlob(id format.Sandbox, name string) ([]byte, error) {
	content, _, err := l.readBlob(id, name)
	return content, fault.Wrap(err, "read a capture of %s", id)
}

func (l *Ledger) readBlob(id format.Sandbox, name string) (content []byte, salt format.Hash, err error) {
	if _, err := format.ParseHash(name); err != nil || !id.Valid() {
		return nil, salt, fault.New(fault.Invalid, "invalid capture %.80q of %.80q", name, string(id))
	}
	content, held := l.captures.get(captureFile(id, name))
	if !held {
		content, err = l.read(captureFile(id, name))
	}
	if err != nil {
		return nil, salt, err
	}
	if content == nil {
		return nil, salt, fault.New(fault.NotFound, "capture %s not found", name)
	}
	salt, hash := l.naming.blob(id, content)
	if hash.String() != name {
		return nil, salt, fault.New(fault.Corrupt, "capture %s has been altered", name)
	}
	return content, salt, nil
}

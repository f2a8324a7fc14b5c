package store

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"filippo.io/age"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// identities reads the file of the identity. It returns NotFound if there is none, and Denied if another user may read
// or write it.
func (a *Age) identities() ([]age.Identity, error) {
	b, err := readPrivate(a.identity, 0o077)
	if err != nil {
		return nil, fault.Wrap(err, "open the identity of the secrets")
	}
	defer wipe(b)
	ids, err := age.ParseIdentities(bytes.NewReader(b))
	if err != nil { // which may quote a line of the file
		return nil, fault.New(fault.Corrupt, "%s is not an identity of age", a.identity).
			WithHint("restore it from a backup")
	}
	return ids, nil
}

// keys returns identities and recipients. It creates what is missing in a store without secrets. The identity is
// durable before the recipients exist, and they before the first secret.
func (a *Age) keys() ([]age.Identity, []age.Recipient, error) {
	recipients, rerr := a.recipients()
	if rerr != nil && !fault.Is(rerr, fault.NotFound) {
		return nil, nil, rerr
	}
	ids, err := a.identities()
	if fault.Is(err, fault.NotFound) {
		names, lerr := a.Names()
		if lerr != nil {
			return nil, nil, lerr
		}
		if len(names) > 0 || rerr == nil {
			return nil, nil, a.locked()
		}
		if err = a.createIdentity(); err == nil {
			ids, err = a.identities()
		}
	}
	if err != nil || rerr == nil {
		return ids, recipients, err
	}
	if err := a.createRecipients(ids); err != nil {
		return nil, nil, err
	}
	recipients, err = a.recipients()
	return ids, recipients, err
}

// recipients reads the recipients, and returns NotFound if they do not exist. Another user who could write to the file
// could read all values that are stored later.
func (a *Age) recipients() ([]age.Recipient, error) {
	b, err := readPrivate(a.recipientsPath(), 0o022)
	if err != nil {
		return nil, fault.Wrap(err, "open the recipients of the secrets")
	}
	all, err := age.ParseRecipients(bytes.NewReader(b))
	if err != nil { // which may quote an identity in the wrong file
		return nil, fault.New(fault.Invalid, "invalid recipients in %s", a.recipientsPath()).
			WithHint("write one recipient of age in each line, such as age1...; remove the file to use the identity's alone")
	}
	return all, nil
}

// createIdentity creates the file of an identity, complete and durable, unless another process has: homes share it.
func (a *Age) createIdentity() error {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return fault.Wrap(err, "create an identity")
	}
	text := []byte("# created by coppice: " + a.now().UTC().Format(time.RFC3339) + "\n# public key: " +
		id.Recipient().String() + "\n" + id.String() + "\n")
	defer wipe(text)
	own := a.identity + "." + rand.Text()
	err = makeDir(a.fs, filepath.Dir(a.identity))
	if err == nil {
		err = vfs.WriteFile(a.fs, own, text)
	}
	if err == nil {
		if err = vfs.Link(a.fs, own, a.identity); errors.Is(err, fs.ErrExist) {
			err = nil
		}
		err = errors.Join(err, vfs.Remove(a.fs, own))
	}
	if err == nil {
		err = vfs.Sync(a.fs, filepath.Dir(a.identity))
	}
	return fault.Wrap(err, "create the identity %s", a.identity)
}

// createRecipients creates the file of recipients, with those of the identities.
func (a *Age) createRecipients(ids []age.Identity) error {
	var text bytes.Buffer
	for _, id := range ids {
		switch id := id.(type) {
		case *age.X25519Identity:
			text.WriteString(id.Recipient().String() + "\n")
		case *age.HybridIdentity:
			text.WriteString(id.Recipient().String() + "\n")
		}
	}
	err := makeDir(a.fs, a.dir)
	if err == nil {
		err = vfs.WriteFile(a.fs, a.recipientsPath(), text.Bytes())
	}
	return fault.Wrap(err, "create the recipients %s", a.recipientsPath())
}

// makeDir is vfs.MkdirAll, but durable.
func makeDir(fsys vfs.FS, path string) error {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return nil
	}
	up := filepath.Dir(path)
	if err := makeDir(fsys, up); err != nil {
		return err
	}
	if err := vfs.MkdirAll(fsys, path); err != nil {
		return err
	}
	return vfs.Sync(fsys, up)
}

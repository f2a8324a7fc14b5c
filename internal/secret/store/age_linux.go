package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"filippo.io/age"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// Age keeps each secret in a file DIR/NAME.age, encrypted for the recipients in DIR/recipients. The identity that
// decrypts them is elsewhere, so that a copy of DIR alone is worth nothing. The first Put creates both: a recipient is
// that of the identity then, and the user may add others, such as a backup's.
//
// One process at a time may write to DIR. Identity may be shared by the stores of several processes.
type Age struct {
	fs       vfs.FS
	dir      string
	identity string
	now      func() time.Time

	mu sync.Mutex // one write at a time
}

// AgeOptions are the options of NewAge. All are required.
type AgeOptions struct {
	FS       vfs.FS
	Dir      string           // an absolute path; created by the first Put
	Identity string           // the path of the identity's file
	Now      func() time.Time // the clock
}

// NewAge returns the store in a directory. It opens nothing.
func NewAge(o AgeOptions) (*Age, error) {
	if o.FS == nil || o.Now == nil || !filepath.IsAbs(o.Dir) || !filepath.IsAbs(o.Identity) {
		return nil, fault.New(fault.Invalid, "invalid options of the store of secrets")
	}
	return &Age{fs: o.FS, dir: o.Dir, identity: o.Identity, now: o.Now}, nil
}

const suffix = ".age"

func (a *Age) path(name string) string { return filepath.Join(a.dir, name+suffix) }
func (a *Age) recipientsPath() string  { return filepath.Join(a.dir, "recipients") }
func (a *Age) missing(name string) error {
	return fault.New(fault.NotFound, "secret %s not found", name).WithHint("store it: coppice secret set %s", name)
}

// Get implements Store for the secret ref.Name.
func (a *Age) Get(_ context.Context, ref Ref) (Value, error) {
	_, v, err := a.Entry(ref.Name)
	return v, err
}

// Entry is what is stored about a secret beside its value.
type Entry struct {
	Kind, From       string // as Put got them
	Created, Rotated time.Time
}

// Entry returns the value of a secret, which the caller closes, and what is stored about it.
func (a *Age) Entry(name string) (Entry, Value, error) {
	if err := CheckName(name); err != nil {
		return Entry{}, Value{}, err
	}
	identities, err := a.identities()
	if fault.Is(err, fault.NotFound) {
		if _, lerr := os.Lstat(a.path(name)); errors.Is(lerr, fs.ErrNotExist) {
			return Entry{}, Value{}, a.missing(name)
		}
		return Entry{}, Value{}, a.locked()
	}
	if err != nil {
		return Entry{}, Value{}, err
	}
	r, err := a.read(name, identities)
	if err != nil {
		return Entry{}, Value{}, err
	}
	v, err := newValue(r.Value)
	if err != nil {
		return Entry{}, Value{}, a.corrupt(name, "it has an invalid value")
	}
	return Entry{r.Kind, r.From, r.Created, r.Rotated}, v, nil
}

// Put implements Store. It replaces a damaged file as well.
func (a *Age) Put(_ context.Context, ref Ref, value []byte) error {
	if err := errors.Join(CheckName(ref.Name), CheckValue(value)); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	identities, recipients, err := a.keys()
	if err != nil {
		return err
	}
	now := a.now().UTC().Truncate(time.Second)
	r := record{Name: ref.Name, Kind: ref.Kind, From: ref.From, Value: value, Created: now, Rotated: now}
	if old, err := a.read(ref.Name, identities); err == nil {
		r.Created = old.Created
		wipe(old.Value)
	}
	sealed, err := r.seal(recipients)
	if err != nil {
		return fault.Wrap(err, "encrypt secret %s", ref.Name)
	}
	// Recipients that the user edited may lack this identity: the old value must not be lost for one that cannot be read.
	again, err := open(sealed, identities)
	if err != nil {
		return fault.New(fault.Invalid, "the recipients in %s do not include the identity %s", a.recipientsPath(),
			a.identity).
			WithHint("add the public key that is in the identity's file: grep public %s", a.identity)
	}
	wipe(again.Value)
	return fault.Wrap(vfs.WriteFile(a.fs, a.path(ref.Name), sealed), "store secret %s", ref.Name)
}

// Delete implements Store. It requires no identity, and removes a damaged file as well.
func (a *Age) Delete(_ context.Context, ref Ref) error {
	if err := CheckName(ref.Name); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := os.Lstat(a.path(ref.Name)); errors.Is(err, fs.ErrNotExist) {
		return a.missing(ref.Name)
	}
	err := vfs.Remove(a.fs, a.path(ref.Name))
	if err == nil {
		err = vfs.Sync(a.fs, a.dir)
	}
	return fault.Wrap(err, "remove secret %s", ref.Name)
}

// Check implements Store. A store that nothing was put into yet is well.
func (a *Age) Check(context.Context) error {
	_, err := a.identities()
	if fault.Is(err, fault.NotFound) {
		names, lerr := a.Names()
		if lerr != nil || len(names) == 0 {
			return lerr
		}
		return a.locked()
	}
	return err
}

// Names returns the names of all secrets, sorted, also of those that cannot be read. It requires no identity.
func (a *Age) Names() (names []string, err error) {
	entries, err := os.ReadDir(a.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Wrap(err, "list secrets")
	}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), suffix); ok && CheckName(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// read reads and decrypts the file of a secret. The caller wipes the value.
func (a *Age) read(name string, identities []age.Identity) (record, error) {
	sealed, err := readPrivate(a.path(name), 0o077)
	if fault.Is(err, fault.NotFound) {
		return record{}, a.missing(name)
	}
	if err != nil {
		return record{}, err
	}
	r, err := open(sealed, identities)
	switch {
	case fault.Is(err, fault.Version):
		return record{}, fault.Wrap(err, "read %s", a.path(name))
	case err != nil:
		var other *age.NoIdentityMatchError
		if errors.As(err, &other) {
			return record{}, a.corrupt(name, "it is encrypted for another identity than "+a.identity)
		}
		return record{}, a.corrupt(name, "it is damaged")
	case r.Name != name:
		wipe(r.Value)
		return record{}, a.corrupt(name, "it is the file of another secret")
	}
	return r, nil
}

func (a *Age) corrupt(name, why string) error {
	return fault.New(fault.Corrupt, "cannot read %s: %s", a.path(name), why).
		WithHint("restore it from a backup, or set it again: coppice secret set %s", name)
}

// locked is the error of an identity that does not exist, where secrets exist.
func (a *Age) locked() error {
	return fault.New(fault.Unavailable, "identity %s not found: the secrets in %s are locked", a.identity, a.dir).
		WithHint("restore it from a backup; if it is lost, remove the secrets, and set them again: rm -r %s", a.dir)
}

// open decrypts the file of a secret. Errors do not contain what it decrypted.
func open(sealed []byte, identities []age.Identity) (record, error) {
	plain, err := age.Decrypt(bytes.NewReader(sealed), identities...)
	if err != nil {
		return record{}, err
	}
	b := make([]byte, 0, maxFile+1)
	defer func() { wipe(b) }()
	for len(b) < cap(b) && err == nil {
		var n int
		n, err = plain.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
	}
	if err != io.EOF { //nolint:errorlint // Read returns it unwrapped
		return record{}, errors.Join(err, errTooLong)
	}
	return parseRecord(b)
}

var errTooLong = errors.New("the file is truncated or too long")

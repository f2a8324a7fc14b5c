package broker

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/secret/client"
	"github.com/coppice-dev/coppice/internal/secret/sshkey"
	"github.com/coppice-dev/coppice/internal/secret/store"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// catalog is the secrets of a home. A secret is a value in the encrypted store, or a reference to one in another store,
// which is encrypted as well, since it may have a credential.
type catalog struct {
	values *store.Age // of secrets, and their references
	own    *store.Age // of the broker: leases, and the key of fingerprints
	now    func() time.Time

	writing sync.Mutex // one change at a time

	mu     sync.Mutex
	env    []string                // of commands
	kept   map[string]*store.Value // output of commands, by source
	forgot int                     // how often kept was emptied
	vaults map[string]*store.Vault // by their settings
	key    []byte                  // of fingerprints; nil: not read yet
}

// reference is the value that the encrypted store has for a secret in another store.
type reference struct {
	Length      int       `json:"length"` // when it was last set
	Fingerprint string    `json:"fingerprint"`
	Vault       *settings `json:"vault,omitempty"`
	Key         string    `json:"key,omitempty"` // the public key of one in an agent, as in authorized_keys
}

// keyName is the name in catalog.own of the key of fingerprints.
const keyName = "fingerprints"

// newCatalog returns the secrets of a home. It opens nothing.
func newCatalog(home, identity string, env []string, now func() time.Time) (*catalog, error) {
	dir := filepath.Join(home, "secrets")
	values, err := store.NewAge(store.AgeOptions{FS: vfs.OS(), Dir: dir, Identity: identity, Now: now})
	if err != nil {
		return nil, err
	}
	own, err := store.NewAge(store.AgeOptions{FS: vfs.OS(), Dir: filepath.Join(dir, "broker"), Identity: identity,
		Now: now})
	if err != nil {
		return nil, err
	}
	return &catalog{values: values, own: own, now: now, env: env, kept: map[string]*store.Value{},
		vaults: map[string]*store.Vault{}}, nil
}

// close wipes what is kept.
func (c *catalog) close() {
	c.forget()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.vaults {
		v.Close()
	}
}

// source returns the source of a secret that is stored with the given text.
func source(from, name string) (store.Source, error) {
	s, err := store.Parse(cmp.Or(from, "age"))
	if s.Store == "age" {
		s.Ref.Name = name
	}
	return s, err
}

// set stores a secret, and describes it.
func (c *catalog) set(ctx context.Context, name string, r client.SetRequest) (client.Secret, error) {
	s, err := source(r.From, name)
	if err == nil {
		err = store.CheckName(name)
	}
	if err == nil && r.Kind != "" {
		_, err = grant.ParseKind(r.Kind)
	}
	if err != nil {
		return client.Secret{}, err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	env := c.renew(r.Env)
	s.Ref.From = cmp.Or(r.From, "age")
	put := r.Value
	if s.Store == "age" && sshkey.IsFile(r.Value) {
		if put, err = sshkey.Value(r.Value); err != nil {
			return client.Secret{}, fault.Wrap(err, "set secret %s", name)
		}
		defer clear(put)
	}
	switch {
	case s.Store == "env":
		return client.Secret{}, fault.New(fault.Invalid, "a variable is read by the program that sets the secret")
	case s.Store != "age" && r.Value != nil:
		return client.Secret{}, fault.New(fault.Invalid, "a secret in another store has no value here").
			WithHint("omit --from to store the value encrypted, or send no value")
	case s.Store == "age":
		s.Ref.Kind, err = kindOf(put, r.Kind)
	case s.Store == "ssh-agent":
		put, s.Ref.From, err = referAgent(ctx, s, env)
		s.Ref.Kind = string(grant.SSH)
	default:
		put, s.Ref.Kind, err = c.refer(ctx, s, r.Kind, env)
	}
	if err != nil {
		return client.Secret{}, fault.Wrap(err, "set secret %s", name)
	}
	ref := store.Ref{Name: name, Kind: s.Ref.Kind, From: s.Ref.From}
	if err := c.values.Put(ctx, ref, put); err != nil {
		return client.Secret{}, err
	}
	return c.describe(ctx, name)
}

// refer reads a secret in another store once, and returns the reference to it.
func (c *catalog) refer(ctx context.Context, s store.Source, named string, env []string) ([]byte, string, error) {
	var to reference
	if s.Store == "vault" {
		at, err := settingsOf(env)
		if err != nil {
			return nil, "", err
		}
		to.Vault = at
	}
	v, err := c.read(ctx, s, to.Vault)
	if err != nil {
		return nil, "", err
	}
	defer v.Close()
	defer c.release(ctx, v)
	kind, err := kindOf(v.Bytes(), named)
	if err != nil {
		return nil, "", err
	}
	if to.Fingerprint, err = c.fingerprint(ctx, v.Bytes()); err != nil {
		return nil, "", err
	}
	to.Length = len(v.Bytes())
	b, err := json.Marshal(to)
	return b, kind, err
}

// kindOf returns the kind of a value, or Invalid if another one was named.
func kindOf(value []byte, named string) (string, error) {
	if err := store.CheckValue(value); err != nil {
		return "", err
	}
	kind := grant.KindOf(string(value)).Kind
	if sshkey.IsValue(value) {
		if _, err := sshkey.Parse(value); err != nil {
			return "", err
		}
		kind = grant.SSH
	}
	switch {
	case named == string(grant.SSH) && kind != grant.SSH:
		return "", fault.New(fault.Invalid, "the value is not a private key of SSH").
			WithHint("store the file: coppice secret set NAME --kind ssh < ~/.ssh/id_ed25519; or use --from ssh-agent:COMMENT")
	case kind == "" || !utf8.Valid(value):
		return "", fault.New(fault.Invalid, "the value cannot be used in requests").
			WithHint("remove spaces at its ends, and use text in UTF-8")
	case named != "" && grant.Kind(named) != kind:
		return "", fault.New(fault.Invalid, "the value is not of kind %s: it has the form of kind %s", named, kind).
			WithHint("check the value, or omit --kind")
	}
	return string(kind), nil
}

// describe describes a secret without reading it from another store.
func (c *catalog) describe(ctx context.Context, name string) (client.Secret, error) {
	e, v, err := c.values.Entry(name)
	if err != nil {
		return client.Secret{}, err
	}
	defer v.Close()
	s := client.Secret{Name: name, Kind: e.Kind, From: cmp.Or(e.From, "age"), Created: e.Created, Rotated: e.Rotated}
	if s.From != "age" {
		to, err := parseReference(name, v.Bytes())
		s.Length, s.Fingerprint = to.Length, to.Fingerprint
		return s, err
	}
	s.Length = len(v.Bytes())
	if s.Kind == string(grant.SSH) {
		s.Fingerprint, err = fingerprintKey(v.Bytes())
		return s, err
	}
	s.Fingerprint, err = c.fingerprint(ctx, v.Bytes())
	return s, err
}

func parseReference(name string, b []byte) (r reference, err error) {
	if json.Unmarshal(b, &r) != nil {
		err = fault.New(fault.Corrupt, "secret %s is not a reference", name).
			WithHint("set it again: coppice secret set %s", name)
	}
	return r, err
}

// list describes all secrets. The error of one is in its description.
func (c *catalog) list(ctx context.Context) ([]client.Secret, error) {
	names, err := c.values.Names()
	if err != nil {
		return nil, err
	}
	all := []client.Secret{}
	for _, name := range names {
		s, err := c.describe(ctx, name)
		if err != nil {
			s = client.Secret{Name: name, Problem: err.Error(), Hint: fault.HintOf(err)}
		}
		all = append(all, s)
	}
	return all, nil
}

// remove removes a secret.
func (c *catalog) remove(ctx context.Context, name string) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.forget()
	return c.values.Delete(ctx, store.Ref{Name: name})
}

// open reads a secret where it is kept. The caller closes the value. at is the server that gave it, or nil.
func (c *catalog) open(ctx context.Context, name string) (v store.Value, at *settings, err error) {
	e, v, err := c.values.Entry(name)
	if err != nil || cmp.Or(e.From, "age") == "age" {
		return v, nil, err
	}
	defer v.Close()
	to, err := parseReference(name, v.Bytes())
	if err != nil {
		return store.Value{}, nil, err
	}
	s, err := source(e.From, name)
	if err != nil {
		return store.Value{}, nil, err
	}
	out, err := c.read(ctx, s, to.Vault)
	if err != nil {
		hint := cmp.Or(fault.HintOf(err), "see whether it can be read now: coppice secret test "+name)
		err = &fault.Error{Kind: fault.KindOf(err), Message: "open secret " + name, Hint: hint, Err: err}
	}
	return out, to.Vault, err
}

// look opens a secret for fn, and revokes its lease.
func (c *catalog) look(ctx context.Context, name string, fn func(value []byte) error) error {
	v, _, err := c.open(ctx, name)
	if err != nil {
		return err
	}
	defer v.Close()
	defer c.release(ctx, v)
	return fn(v.Bytes())
}

// test opens a secret and describes what it is now.
func (c *catalog) test(ctx context.Context, name string) (client.Secret, error) {
	s, err := c.describe(ctx, name)
	if err != nil {
		return client.Secret{}, err
	}
	if s.Kind == string(grant.SSH) {
		signer, err := c.signer(ctx, name)
		if err == nil {
			err = signer.Close()
		}
		return s, err
	}
	return s, c.look(ctx, name, func(value []byte) (err error) {
		s.Length, s.Kind = len(value), string(grant.KindOf(string(value)).Kind)
		s.Fingerprint, err = c.fingerprint(ctx, value)
		return err
	})
}

// shape returns the shape of a secret's value.
func (c *catalog) shape(ctx context.Context, name string) (s grant.Shape, err error) {
	if is, err := c.describe(ctx, name); err != nil || is.Kind == string(grant.SSH) {
		return grant.Shape{Kind: grant.SSH}, err
	}
	return s, c.look(ctx, name, func(value []byte) error {
		if _, err := kindOf(value, ""); err != nil {
			return fault.Wrap(err, "secret %s", name)
		}
		s = grant.KindOf(string(value))
		return nil
	})
}

// sum returns the HMAC of a value with the key of the home, which is created when it is first needed. Equal values of a
// home have equal sums, which say nothing about the values to others.
func (c *catalog) sum(ctx context.Context, value []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.key == nil {
		v, err := c.own.Get(ctx, store.Ref{Name: keyName})
		if fault.Is(err, fault.NotFound) {
			fresh := []byte(rand.Text())
			if err = c.own.Put(ctx, store.Ref{Name: keyName, Kind: keyName}, fresh); err == nil {
				v, err = c.own.Get(ctx, store.Ref{Name: keyName})
			}
		}
		if err != nil {
			return nil, err
		}
		c.key = append([]byte(nil), v.Bytes()...)
		v.Close()
	}
	mac := hmac.New(sha256.New, c.key)
	mac.Write(value)
	return mac.Sum(nil), nil
}

// fingerprint returns a short text by which the owner recognizes a value.
func (c *catalog) fingerprint(ctx context.Context, value []byte) (string, error) {
	sum, err := c.sum(ctx, value)
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(sum[:6]), nil
}

// version returns a number that differs for different values.
func (c *catalog) version(ctx context.Context, value []byte) (int64, error) {
	sum, err := c.sum(ctx, value)
	if err != nil {
		return 0, err
	}
	return int64(binary.BigEndian.Uint64(sum) >> 1), nil
}

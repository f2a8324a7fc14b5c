// Package seal encrypts, with a key of the home, values that the home stores and must give
// back as they were, such as environments. It is pure but
// for Load and Make, which keep the key in a file. It imports fault alone; meta, journal and
// those who hand their keys on may import it.
//
//	sealed1:KEY:DATA
//
// KEY is the id of the key, 16 hex digits; DATA is base64 for URLs, without padding, of a
// nonce of 12 bytes and what AES-256-GCM makes of the value, with the purpose as additional
// data. The nonce is the beginning of an HMAC-SHA256 of purpose and value under a key of its
// own: so no nonce comes again with another value, no random number can be bad, and what is
// equal is sealed equally. That two values are equal, and how long they are, is what
// somebody without the key can tell.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Size is the length of a key's secret, in bytes.
const Size = 32

const (
	prefix  = "sealed1:"
	idBytes = 8
)

// Key seals and opens. Make one with New or Load; the zero Key neither seals nor opens. It
// does not change, and may be used by many at the same time.
type Key struct {
	id     string
	secret []byte // others are derived from
	nonces []byte
	aead   cipher.AEAD
}

// New makes the key of a secret of Size bytes. The error is fault.Invalid.
func New(secret []byte) (k Key, err error) {
	if len(secret) != Size {
		return Key{}, fault.New(fault.Invalid, "invalid key of %d bytes: must have %d", len(secret), Size)
	}
	part := func(of string, n int) []byte {
		b, derr := hkdf.Key(sha256.New, secret, nil, "coppice seal "+of, n)
		if derr != nil {
			err = derr
		}
		return b
	}
	k = Key{id: hex.EncodeToString(part("id", idBytes)), secret: part("derive", Size), nonces: part("nonces", Size)}
	block, berr := aes.NewCipher(part("values", Size))
	if err != nil || berr != nil {
		return Key{}, fault.New(fault.Internal, "create a key").Because(errors.Join(err, berr))
	}
	if k.aead, err = cipher.NewGCM(block); err != nil {
		return Key{}, fault.New(fault.Internal, "create a key").Because(err)
	}
	return k, nil
}

// ID tells keys apart, and nothing of the secret.
func (k Key) ID() string { return k.id }

// Derive gives the secret of another key, for a purpose: whoever has it cannot open what
// this one seals.
func (k Key) Derive(purpose string) []byte {
	if k.aead == nil {
		return nil
	}
	h := hmac.New(sha256.New, k.secret)
	h.Write([]byte(purpose))
	return h.Sum(nil)
}

// Seal gives a value so that only the key opens it, for the same purpose. The error is
// fault.Internal: of the zero Key.
func (k Key) Seal(purpose string, value []byte) (string, error) {
	if k.aead == nil {
		return "", fault.New(fault.Internal, "no key to encrypt with")
	}
	h := hmac.New(sha256.New, k.nonces)
	for _, part := range [][]byte{[]byte(purpose), {0}, value} { // no purpose has a byte 0
		h.Write(part)
	}
	room := k.aead.NonceSize() + len(value) + k.aead.Overhead()
	nonce := h.Sum(make([]byte, 0, max(room, sha256.Size)))[:k.aead.NonceSize()]
	return prefix + k.id + ":" + base64.RawURLEncoding.EncodeToString(k.aead.Seal(nonce, nonce, value, []byte(purpose))),
		nil
}

// Open gives a value that was sealed for a purpose. The errors are fault.Corrupt for one
// that is damaged or of another purpose, and fault.Denied for one of another key.
func (k Key) Open(purpose, sealed string) ([]byte, error) {
	id, data, found := strings.Cut(strings.TrimPrefix(sealed, prefix), ":")
	switch {
	case !Is(sealed) || !found:
		return nil, fault.New(fault.Corrupt, "the value is not encrypted")
	case k.aead == nil || id != k.id:
		return nil, fault.New(fault.Denied, "the value is encrypted with key %.16q, which is not the current one", id)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(data)
	if err == nil && len(b) < k.aead.NonceSize() {
		err = fault.New(fault.Corrupt, "too short")
	}
	if err != nil {
		return nil, fault.New(fault.Corrupt, "the encrypted value is damaged").Because(err)
	}
	value, err := k.aead.Open(nil, b[:k.aead.NonceSize()], b[k.aead.NonceSize():], []byte(purpose))
	if err != nil {
		return nil, fault.New(fault.Corrupt, "the encrypted value is damaged").Because(err)
	}
	return value, nil
}

// Is reports whether a text is a sealed value, by its beginning.
func Is(s string) bool { return strings.HasPrefix(s, prefix) }

// Package secretbox encrypts, with a key of the home, values that the home stores and must read back unchanged, such
// as environments. It does no I/O except in Load and Make, which store the key in a file. It imports fault and vfs;
// meta, journal and packages that pass their keys on may import it.
//
//	sealed1:KEY:DATA
//
// KEY is the id of the key, 16 hex digits; DATA is base64 for URLs, without padding, of a nonce of 12 bytes and the
// output of AES-256-GCM for the value, with the purpose as additional data. The nonce is the beginning of an
// HMAC-SHA256 of purpose and value under a separate key. So no nonce is reused for another value, the nonce needs no
// random numbers, and equal values have equal ciphertexts. Without the key, only the lengths of values and which of
// them are equal can be seen.
package secretbox

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

// Key encrypts and decrypts values. New, Load or Make creates one; the zero Key does neither. It is immutable and
// safe for concurrent use.
type Key struct {
	id     string
	secret []byte // other keys are derived from it
	nonces []byte
	aead   cipher.AEAD
}

// New returns the key of a secret of Size bytes, or fault.Invalid.
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

// ID identifies the key without revealing the secret.
func (k Key) ID() string { return k.id }

// Derive returns the secret of another key, for a purpose. That key cannot decrypt values of this one.
func (k Key) Derive(purpose string) []byte {
	if k.aead == nil {
		return nil
	}
	h := hmac.New(sha256.New, k.secret)
	h.Write([]byte(purpose))
	return h.Sum(nil)
}

// Seal encrypts a value, so that only this key decrypts it, for the same purpose. The error of the zero Key
// is Internal.
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

// Open decrypts a value that was encrypted for a purpose. It returns Corrupt for a value that is damaged or of
// another purpose, and Denied for one of another key.
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

// Is reports whether a text looks like an encrypted value, by its prefix.
func Is(s string) bool { return strings.HasPrefix(s, prefix) }

package redact

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"regexp"
	"sync"
)

const (
	markBegin = "[redacted:"
	printSize = 6 // bytes of a fingerprint, which is for telling secrets apart, not for proof
	markTail  = 2*printSize + len("]")
)

// marks is what a mark looks like.
var marks = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\A\[redacted:[A-Za-z0-9][A-Za-z0-9_.-]{0,63}:[0-9a-f]{12}\]`)
})

// mark is what stands for a secret.
func mark(name, print string) string { return markBegin + name + ":" + print + "]" }

// fingerprint is the same for the same secret in the same home, and tells nothing to whoever
// does not have the home's key.
func (r *Redactor) fingerprint(secret []byte) string {
	h := r.mac()
	h.Write(secret)
	return seal(h)
}

func (r *Redactor) mac() hash.Hash {
	h := hmac.New(sha256.New, r.key)
	h.Write([]byte("coppice redact v1\x00"))
	return h
}

// seal ends a fingerprint.
func seal(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)[:printSize]) }

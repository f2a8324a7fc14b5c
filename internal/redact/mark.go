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
	printSize = 6 // bytes of a fingerprint, which distinguishes secrets but proves nothing
	markTail  = 2*printSize + len("]")
)

// marks matches marks.
var marks = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\A\[redacted:[A-Za-z0-9][A-Za-z0-9_.-]{0,63}:[0-9a-f]{12}\]`)
})

// mark returns the text that replaces a secret.
func mark(name, print string) string { return markBegin + name + ":" + print + "]" }

// fingerprint returns the same text for the same secret in the same home. It reveals nothing without the key of the
// home.
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

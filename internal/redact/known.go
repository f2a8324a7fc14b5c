package redact

import (
	"slices"
	"strings"
)

// maxName is the maximum length of the name of a secret.
const maxName = 64

// Random reports whether a value is a single token that looks random, as for Options.Entropy.
func Random(value string) bool {
	value = strings.TrimSpace(value)
	return strings.Trim(value, tokenBytes) == "" && random([]byte(value))
}

// Reach returns the length of the longest form of a value that is searched, in bytes. A form that begins before a
// position has at most that many bytes after it.
func (r *Redactor) Reach() int { return int(slices.Max(r.words.depth)) }

// tokenBytes are the bytes of tokens that may look random.
const tokenBytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+_=-"

// NameOf returns s as the name of a secret, without the characters that names cannot have.
func NameOf(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '.', r == '-':
			return r
		}
		return -1
	}, s)
	s = strings.TrimLeft(s, "_.-")
	if s == "" {
		return "secret"
	}
	return s[:min(len(s), maxName)]
}

package redact

import (
	"slices"
	"strings"
)

// maxName is the length of the longest name of a secret.
const maxName = 64

// Random reports whether a value is one token that looks random, as Options.Entropy has it.
func Random(value string) bool {
	value = strings.TrimSpace(value)
	return strings.Trim(value, tokenBytes) == "" && random([]byte(value))
}

// Reach is the length of the longest form of a value that is looked for, in bytes: of one
// that began before a place, no more than so many bytes are after it.
func (r *Redactor) Reach() int { return int(slices.Max(r.words.depth)) }

// tokenBytes are those that tokens which may look random have.
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

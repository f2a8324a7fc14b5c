package grant

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Part is a run of characters of a token. Text is only set for a Literal.
type Part struct {
	Alphabet Alphabet `json:"alphabet"`
	Length   int      `json:"length"`
	Text     string   `json:"text,omitempty"`
}

// Shape is what is stored about the value of a secret: its kind, and which characters are where. It contains only such
// texts of the value as all tokens of a kind have. KindOf makes it; the zero Shape is that of no secret.
type Shape struct {
	Kind  Kind   `json:"kind"`
	Parts []Part `json:"parts"`
}

// Equal reports whether both shapes are the same.
func (s Shape) Equal(o Shape) bool { return s.Kind == o.Kind && slices.Equal(s.Parts, o.Parts) }

// Length returns the length of the value in bytes.
func (s Shape) Length() (n int) {
	for _, p := range s.Parts {
		n += p.Length
	}
	return n
}

// Prefix returns the fixed text at the beginning, such as ghp_, or "".
func (s Shape) Prefix() string {
	if len(s.Parts) > 0 {
		return s.Parts[0].Text
	}
	return ""
}

// String describes the shape, such as `github "ghp_" alnum*30 crc62*6`.
func (s Shape) String() string {
	text := string(s.Kind)
	for _, p := range s.Parts {
		if p.Alphabet == Literal {
			text += fmt.Sprintf(" %q", p.Text)
		} else {
			text += fmt.Sprintf(" %s*%d", p.Alphabet, p.Length)
		}
	}
	return text
}

const (
	// leastBits is the randomness of a placeholder, so that none occurs by accident, and none is another's.
	leastBits = 96
	// leastLength is the length of a placeholder in bytes, below which a search for it would be slow.
	leastLength = 16
	leastKey    = 16
	tries       = 64
)

// Placeholder returns the text that stands for a secret in a sandbox. It has the shape s, and is derived from key and
// the names alone: the same arguments give the same text, in all versions of the program. It is not a key: it
// authorizes nothing. It fails if s leaves less than 96 bits to chance; then only ModeAdd can use the secret.
func Placeholder(key []byte, sandbox, grant string, epoch uint32, s Shape) (string, error) {
	bits, n := 0.0, s.Length()
	for _, p := range s.Parts {
		bits += p.Alphabet.bits(p.Length)
	}
	switch {
	case len(key) < leastKey || sandbox == "" || grant == "":
		return "", fault.New(fault.Internal, "make a placeholder: no key, sandbox or grant")
	case n < leastLength || n > MaxValue || bits < leastBits:
		return "", fault.New(fault.Invalid, "secret of grant %s is too short for a placeholder: %d bytes", grant, n).
			WithHint("let the gate add it, without a placeholder: mode: add")
	}
	for try := range uint32(tries) {
		seed := []byte("coppice placeholder 1\x00")
		for _, text := range []string{sandbox, grant, s.String()} {
			seed = append(binary.BigEndian.AppendUint32(seed, uint32(len(text))), text...)
		}
		seed = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(seed, epoch), try)
		text := s.fill(&stream{key: key, seed: seed})
		// Random characters may happen to have another shape, such as that of a hexadecimal number.
		if KindOf(text).Equal(s) {
			return text, nil
		}
	}
	return "", fault.New(fault.Internal, "make a placeholder for grant %s: invalid shape %s", grant, s)
}

// fill returns a text of shape s.
func (s Shape) fill(r *stream) string {
	var text strings.Builder
	first, random := len(s.Prefix()), 0
	for _, p := range s.Parts {
		switch p.Alphabet {
		case Literal:
			text.WriteString(p.Text)
		case CRC62:
			text.WriteString(base62(crcOf(text.String()[first:]), p.Length))
		case CRC36:
			text.WriteString(base36(uint64(crcOf(text.String())), p.Length))
		case Length36:
			text.WriteString(base36(uint64(random), p.Length))
		case JWTHeader:
			text.WriteString(object(headerMembers, p.Length, nil))
		case JWTClaims:
			text.WriteString(object(claimMembers, p.Length, func(n int) string { return r.some(n, alnum) }))
		case Bytes:
			random = p.Length
			text.WriteString(base64.RawURLEncoding.EncodeToString(r.bytes(base64.RawURLEncoding.DecodedLen(p.Length))))
		case UserPass:
			n := base64.RawStdEncoding.DecodedLen(p.Length) - len(aUser)
			text.WriteString(base64.RawStdEncoding.EncodeToString([]byte(aUser + r.some(n, alnum))))
		default:
			text.WriteString(r.some(p.Length, p.Alphabet.letters()))
		}
	}
	return text.String()
}

// stream is a sequence of bytes that is derived from a key: HMAC-SHA256 of seed and a counter.
type stream struct {
	key, seed, rest []byte
	count           uint32
}

func (r *stream) bytes(n int) []byte {
	for len(r.rest) < n {
		mac := hmac.New(sha256.New, r.key)
		mac.Write(binary.BigEndian.AppendUint32(slices.Clone(r.seed), r.count))
		r.rest, r.count = mac.Sum(r.rest), r.count+1
	}
	out := slices.Clone(r.rest[:n])
	r.rest = r.rest[n:]
	return out
}

// some returns n characters of an alphabet, which are equally likely. It returns "" for an empty alphabet.
func (r *stream) some(n int, alphabet string) string {
	var text []byte
	for fair := 256 - 256%max(len(alphabet), 1); alphabet != "" && len(text) < n; {
		if b := int(r.bytes(1)[0]); b < fair {
			text = append(text, alphabet[b%len(alphabet)])
		}
	}
	return string(text)
}

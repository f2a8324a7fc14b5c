package grant

import (
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"strings"
)

// Alphabet is how a Part of a token is filled: with random characters, or with what is computed from them.
type Alphabet string

// The alphabets of random characters.
const (
	Hex       Alphabet = "hex"
	UpperHex  Alphabet = "upper-hex"
	Variant   Alphabet = "variant" // of a UUID: 8, 9, a or b
	Digits    Alphabet = "digits"
	Base32    Alphabet = "base32"
	Lower     Alphabet = "lower" // letters and digits
	Upper     Alphabet = "upper"
	Letters   Alphabet = "letters"
	Alnum     Alphabet = "alnum"
	Base64URL Alphabet = "base64url"
	Base64    Alphabet = "base64"
)

// The alphabets of what is computed.
const (
	Literal   Alphabet = "literal"    // Part.Text
	CRC62     Alphabet = "crc62"      // CRC-32 of all random parts and the literals between them, in base62
	CRC36     Alphabet = "crc36"      // CRC-32 of everything before, in base36
	Length36  Alphabet = "length36"   // length of the first random part, in base36
	JWTHeader Alphabet = "jwt-header" // a JSON object in base64url
	JWTClaims Alphabet = "jwt-claims" // likewise, with an expiry in the year 2100
	Bytes     Alphabet = "bytes"      // random bytes in base64url, without padding
	UserPass  Alphabet = "user-pass"  // USER:PASSWORD in base64, without padding
)

const (
	digits = "0123456789"
	lower  = "abcdefghijklmnopqrstuvwxyz"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	alnum  = digits + upper + lower
)

// letters returns the characters of an alphabet of random characters, or "".
func (a Alphabet) letters() string {
	switch a {
	case Hex:
		return digits + "abcdef"
	case UpperHex:
		return digits + "ABCDEF"
	case Variant:
		return "89ab"
	case Digits:
		return digits
	case Base32:
		return upper + "234567"
	case Lower:
		return digits + lower
	case Upper:
		return digits + upper
	case Letters:
		return upper + lower
	case Alnum:
		return alnum
	case Base64URL:
		return alnum + "-_"
	case Base64:
		return alnum + "+/"
	}
	return ""
}

// bits returns the randomness of n characters, in bits.
func (a Alphabet) bits(n int) float64 {
	switch a {
	case Bytes:
		return float64(8 * base64.RawURLEncoding.DecodedLen(n))
	case UserPass:
		return Alnum.bits(base64.RawStdEncoding.DecodedLen(n) - len(aUser))
	}
	if l := a.letters(); l != "" {
		return float64(n) * math.Log2(float64(len(l)))
	}
	return 0
}

// aUser is the user name in a UserPass. The real one is not stored in a Shape.
const aUser = "x:"

// base62 writes a checksum as GitHub and npm do: digits, upper case, lower case, with leading zeros.
func base62(sum uint32, n int) string {
	b := []byte(strings.Repeat("0", n))
	for i := n - 1; i >= 0 && sum > 0; i-- {
		b[i] = alnum[sum%62]
		sum /= 62
	}
	return string(b)
}

// base36 writes a number as GitLab does: digits and lower case, with leading zeros.
func base36(v uint64, n int) string {
	s := strconv.FormatUint(v, 36)
	return strings.Repeat("0", max(0, n-len(s))) + s
}

func crcOf(s string) uint32 { return crc32.ChecksumIEEE([]byte(s)) }

// object returns a JSON object that begins with the given members, in n characters of base64url. What remains is
// filled with spaces, or with a member jti of random characters.
func object(members string, n int, random func(n int) string) string {
	room := base64.RawURLEncoding.DecodedLen(n) - len(members) - 2
	if filler := room - len(`,"jti":""`); random != nil && filler > 0 {
		members += fmt.Sprintf(`,"jti":"%s"`, random(filler))
	} else {
		members += strings.Repeat(" ", max(0, room))
	}
	return base64.RawURLEncoding.EncodeToString([]byte("{" + members + "}"))
}

// The members of the objects of a JWT placeholder. 4102444800 is the first second of the year 2100.
const (
	headerMembers = `"alg":"RS256"`
	claimMembers  = `"exp":4102444800`
)

package decoy

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"strings"
	"time"
)

// maker generates one file.
type maker struct {
	random io.Reader
	of     Owner
	now    time.Time
	text   strings.Builder
	tokens []string
	err    error // error of random; the content is then invalid
}

const (
	digits = "0123456789"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	lower  = "abcdefghijklmnopqrstuvwxyz"
	hexes  = digits + "abcdef"
	alnum  = digits + upper + lower
	std64  = upper + lower + digits + "+/"
	url64  = upper + lower + digits + "-_"
)

func (m *maker) bytes(n int) []byte {
	b := make([]byte, n)
	if _, err := io.ReadFull(m.random, b); err != nil {
		m.err = err
	}
	return b
}

// number returns a uniformly distributed number below n.
func (m *maker) number(n int) int {
	limit := uint64(n) * (1 << 32 / uint64(n))
	for {
		if v := uint64(binary.LittleEndian.Uint32(m.bytes(4))); v < limit {
			return int(v % uint64(n))
		}
	}
}

func (m *maker) pick(of ...string) string { return of[m.number(len(of))] }

// some returns n random characters of an alphabet.
func (m *maker) some(n int, alphabet string) string {
	var b strings.Builder
	for range n {
		b.WriteByte(alphabet[m.number(len(alphabet))])
	}
	return b.String()
}

// secret returns n random characters of an alphabet, registered as a token.
func (m *maker) secret(n int, alphabet string) string { return m.keep(m.some(n, alphabet)) }

// keep registers s as a token and returns it.
func (m *maker) keep(s string) string {
	m.tokens = append(m.tokens, s)
	return s
}

// checked returns a token in the format of GitHub and npm: 30 characters and a checksum of six, by which scanners
// recognize it.
func (m *maker) checked(prefix string) string {
	body := m.some(30, alnum)
	sum := crc32.ChecksumIEEE([]byte(body))
	tail := make([]byte, 6)
	for i := len(tail) - 1; i >= 0; i-- {
		tail[i] = alnum[sum%62]
		sum /= 62
	}
	return prefix + m.keep(body+string(tail))
}

// uuid returns a random UUID (RFC 9562).
func (m *maker) uuid() string {
	s := []byte(m.some(8, hexes) + "-" + m.some(4, hexes) + "-4" + m.some(3, hexes) + "-" + m.pick("8", "9", "a", "b") +
		m.some(3, hexes) + "-" + m.some(12, hexes))
	return m.keep(string(s))
}

package javastore

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
)

// A key store in JKS, Java's own format, which every Java version reads. Numbers are big-endian, and a text is
// preceded by its length in two bytes:
//
//	offset  bytes  content
//	0       4      0xfeedfeed
//	4       4      version: 2
//	8       4      number of entries
//	12             entries: 4 kind (2 is a trusted certificate), alias, 8 time in
//	               milliseconds, "X.509", 4 length, DER
//	end-20  20     SHA-1 of the password in UTF-16, "Mighty Aphrodite", and all of the above
const (
	jksMagic   = "\xfe\xed\xfe\xed\x00\x00\x00\x02"
	jksHeader  = 12
	jksTrusted = 2
	// password is the password of every store of authorities; it protects nothing.
	password = "changeit"
)

// addJKS is Add for this format. It returns nil for any other.
func addJKS(have, der []byte) []byte {
	if len(have) < jksHeader+sha1.Size || string(have[:len(jksMagic)]) != jksMagic {
		return nil
	}
	body, sum := have[:len(have)-sha1.Size], have[len(have)-sha1.Size:]
	n := binary.BigEndian.Uint32(body[8:])
	if !bytes.Equal(sum, jksSum(body)) || n == 1<<32-1 || !jksTrusts(body[jksHeader:], n) {
		return nil
	}
	if bytes.Contains(body, der) {
		return have
	}
	text := func(b []byte, s string) []byte {
		return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
	}
	all := append([]byte(nil), body...)
	binary.BigEndian.PutUint32(all[8:], n+1)
	all = binary.BigEndian.AppendUint32(all, jksTrusted)
	all = text(all, alias)
	all = binary.BigEndian.AppendUint64(all, 0)
	all = text(all, "X.509")
	all = binary.BigEndian.AppendUint32(all, uint32(len(der)))
	all = append(all, der...)
	return append(all, jksSum(all)...)
}

// jksTrusts reports whether b is n entries of trusted certificates, and nothing else.
func jksTrusts(b []byte, n uint32) bool {
	take := func(size uint64) (part []byte) { // nil: too few bytes are left
		if uint64(len(b)) < size {
			return nil
		}
		part, b = b[:size:size], b[size:]
		return part
	}
	number := func(size uint64) uint64 { // parses a length; 1 << 40 if bytes are missing
		part := take(size)
		if part == nil {
			return 1 << 40
		}
		var n uint64
		for _, c := range part {
			n = n<<8 | uint64(c)
		}
		return n
	}
	for ; n > 0; n-- {
		if number(4) != jksTrusted || take(number(2)) == nil || take(8) == nil || take(number(2)) == nil ||
			take(number(4)) == nil {
			return false
		}
	}
	return len(b) == 0
}

// jksSum returns the checksum at the end of a store. Any writer of the file can compute it.
func jksSum(body []byte) []byte {
	h := sha1.New()
	for _, c := range []byte(password) {
		h.Write([]byte{0, c})
	}
	h.Write([]byte("Mighty Aphrodite"))
	h.Write(body)
	return h.Sum(nil)
}

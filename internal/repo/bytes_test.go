package repo

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
)

func deflate(b []byte) []byte {
	var out bytes.Buffer
	w := zlib.NewWriter(&out)
	w.Write(b)
	w.Close()
	return out.Bytes()
}

func sha1sum(b []byte) []byte {
	sum := sha1.Sum(b)
	return sum[:]
}

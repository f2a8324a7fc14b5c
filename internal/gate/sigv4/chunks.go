package sigv4

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/coppice-dev/coppice/internal/limit"
)

// ChunkError is why the chunks of a body cannot be signed. It says nothing of the access key.
type ChunkError struct{ Why string }

// Error implements error.
func (e *ChunkError) Error() string { return "the signed chunks of the body: " + e.Why }

// chunks is a body (aws-chunked) whose signatures are made again. It is as long as the body that it reads.
//
//	SIZE;chunk-signature=SIGNATURE CRLF, SIZE bytes, CRLF
//	...
//	0;chunk-signature=SIGNATURE CRLF
//	NAME:VALUE CRLF...                 with trailers, of which the last is
//	x-amz-trailer-signature:SIGNATURE CRLF
//	CRLF
//
// Each signature is of the one before, so the head of a chunk is sent when all of the chunk has arrived.
type chunks struct {
	body  io.Closer
	r     *bufio.Reader
	mu    sync.Mutex // of the fields below: net/http may close a body that it reads
	key   signingKey // guarded by mu; wiped when closed
	over  bool       // guarded by mu
	q     *Request
	last  string // signature
	hold  func(int64) error
	held  int64
	chunk []byte // with its head
	ready []byte // the rest of chunk
	err   error
}

func newChunks(body io.ReadCloser, q *Request, k signingKey, seed string, hold func(int64) error) *chunks {
	return &chunks{body: body, r: bufio.NewReaderSize(body, limit.SignedLine), q: q, key: k, last: seed, hold: hold}
}

// Read implements io.Reader.
func (c *chunks) Read(p []byte) (int, error) {
	for len(c.ready) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		c.chunk = c.chunk[:0]
		done, err := c.next()
		switch {
		case err != nil:
			c.err = err
			return 0, err
		case done:
			c.err = io.EOF
		}
		c.ready = c.chunk
	}
	n := copy(p, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}

// Close implements io.Closer.
func (c *chunks) Close() error {
	c.mu.Lock()
	c.over = true
	clear(c.key[:])
	c.mu.Unlock()
	return c.body.Close()
}

// next reads a chunk, and the end of the body after the last. It reports whether that was the end.
func (c *chunks) next() (done bool, err error) {
	line, err := c.line()
	if err != nil {
		return false, err
	}
	size, rest, ok := strings.Cut(line, ";chunk-signature=")
	n, err := strconv.ParseUint(size, 16, 31)
	switch {
	case !ok || err != nil || len(size) > 8 || strings.ContainsAny(size, "+_") || !isHex(rest):
		return false, &ChunkError{"the head of a chunk is malformed"}
	case n > limit.SignedChunk:
		return false, &ChunkError{fmt.Sprintf("a chunk is longer than %d KiB", limit.SignedChunk>>10)}
	}
	data, err := c.data(len(line)+2, int(n))
	if err != nil {
		return false, err
	}
	sum := sha256.Sum256(data)
	empty := sha256.Sum256(nil)
	signature, err := c.sign(algorithm+"-PAYLOAD", hex.EncodeToString(empty[:])+"\n"+hex.EncodeToString(sum[:]))
	if err != nil {
		return false, err
	}
	copy(c.chunk, size+";chunk-signature="+signature+"\r\n")
	switch {
	case n > 0:
		c.chunk = append(c.chunk, "\r\n"...)
		return false, c.empty()
	case c.q.payload == streamingTrailer:
		err = c.trailers()
	default:
		err = c.empty()
	}
	if err != nil {
		return false, err
	}
	c.chunk = append(c.chunk, "\r\n"...)
	if _, err := c.r.ReadByte(); !errors.Is(err, io.EOF) {
		if err == nil {
			err = &ChunkError{"data follows the last chunk"}
		}
		return false, err
	}
	return true, nil
}

// data reads n bytes behind room for a head.
func (c *chunks) data(head, n int) ([]byte, error) {
	if need := int64(head + n + 2); need > c.held {
		if err := c.hold(need - c.held); err != nil {
			return nil, err
		}
		c.held = need
	}
	c.chunk = slices.Grow(c.chunk, head+n+2)[:head+n]
	data := c.chunk[head:]
	_, err := io.ReadFull(c.r, data)
	return data, cut(err)
}

// trailers reads trailers, whose signature is the last of them.
func (c *chunks) trailers() error {
	var all []string
	size := 0
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		name, value, ok := strings.Cut(line, ":")
		if size += len(line) + 2; !ok || size > limit.TrailerBytes {
			return &ChunkError{"the trailers are malformed, or too long"}
		}
		if !strings.EqualFold(name, "x-amz-trailer-signature") {
			c.chunk = append(c.chunk, line+"\r\n"...)
			all = append(all, strings.ToLower(name)+":"+strings.TrimSpace(value)+"\n")
			continue
		}
		if !isHex(strings.TrimSpace(value)) || len(all) == 0 {
			return &ChunkError{"the trailers are malformed"}
		}
		slices.Sort(all)
		sum := sha256.Sum256([]byte(strings.Join(all, "")))
		signature, err := c.sign(algorithm+"-TRAILER", hex.EncodeToString(sum[:]))
		if err != nil {
			return err
		}
		c.chunk = append(c.chunk, name+":"+strings.Replace(value, strings.TrimSpace(value), signature, 1)+"\r\n"...)
		return c.empty()
	}
}

// sign signs what follows the last signature.
func (c *chunks) sign(kind, what string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return "", errors.New("the body was closed")
	}
	c.last = c.key.sign(strings.Join([]string{kind, c.q.stamp, c.q.within(), c.last, what}, "\n"))
	return c.last, nil
}

// empty reads CRLF.
func (c *chunks) empty() error {
	line, err := c.line()
	if err == nil && line != "" {
		err = &ChunkError{"a chunk does not end where it should"}
	}
	return err
}

// line reads a line.
func (c *chunks) line() (string, error) {
	b, err := c.r.ReadSlice('\n')
	text, ok := bytes.CutSuffix(b, []byte("\r\n"))
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return "", &ChunkError{"a line is too long"}
	case err != nil:
		return "", cut(err)
	case !ok || bytes.ContainsAny(text, "\r\x00"):
		return "", &ChunkError{"a line is malformed"}
	}
	return string(text), nil
}

// cut returns the error of a body that ends too early.
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &ChunkError{"the last is missing"}
	}
	return err
}

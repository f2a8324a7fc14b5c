package scrub

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// The bounds of decoding.
const (
	maxWindow  = 8 << 20 // RFC 9659
	maxPending = 1 << 20 // encoded bytes that decode to nothing
	// scratch is the size of a buffer for a whole block of a decoder, of at most 128 KiB: when a decoder has returned it,
	// it has returned all that it has decoded. There is room for what is held back, too.
	scratch = 192 << 10
)

// Found is the error of reading an encoded body that has a value.
type Found struct{ Grant string }

// Error implements error.
func (f Found) Error() string {
	return "the encoded body has the secret of grant " + f.Grant + ", and only one without an encoding can be changed"
}

// ErrCoding means that a body cannot be decoded.
var ErrCoding = errors.New("the body has an encoding that cannot be searched for secrets")

// Encoded returns a reader of r, which has a Content-Encoding: gzip, deflate, or zstd. It returns the bytes of r as
// they are, and each only when all that is decoded from it was searched. It fails with Found at the first value, and
// with ErrCoding if r cannot be decoded. Another encoding is ErrCoding at once.
func (l *Live) Encoded(coding string, r io.Reader) (io.ReadCloser, error) {
	e := &encoded{in: &tap{r: bufio.NewReaderSize(r, leastIn)}}
	switch strings.ToLower(strings.TrimSpace(coding)) {
	case "gzip", "x-gzip":
		e.open = func() (io.Reader, error) { return gzip.NewReader(e.in) }
	case "deflate":
		e.open = e.deflate
	case "zstd":
		e.open = e.zstd
	default:
		return nil, fmt.Errorf("%w: %.40q", ErrCoding, coding)
	}
	e.live = l
	return e, nil
}

// encoded implements Encoded: it decodes what it reads, and returns what the decoder has consumed.
type encoded struct {
	live  *Live
	in    *tap
	open  func() (io.Reader, error)
	clean *reader // of the decoded body; nil before the first Read
	close func()
	found string
	ready []byte
	err   error
	out   []byte
}

// deflate opens a body with the header of zlib, which the encoding requires, or without, as some servers send it.
func (e *encoded) deflate() (io.Reader, error) {
	if b, err := e.in.r.Peek(2); err == nil && b[0]&15 == 8 && (int(b[0])<<8|int(b[1]))%31 == 0 {
		return zlib.NewReader(e.in)
	}
	return flate.NewReader(e.in), nil
}

func (e *encoded) zstd() (io.Reader, error) {
	// With one goroutine the decoder reads no further than the block that it decodes.
	d, err := zstd.NewReader(e.in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxWindow))
	if err == nil {
		e.close = d.Close
	}
	return d, err
}

// Read implements io.Reader.
func (e *encoded) Read(p []byte) (int, error) {
	for len(e.ready) == 0 {
		if e.err != nil {
			return 0, e.err
		}
		if e.err = e.decode(); e.err == nil || errors.Is(e.err, io.EOF) {
			e.ready, e.in.taken = e.in.taken, nil
		}
	}
	n := copy(p, e.ready)
	e.ready = e.ready[n:]
	return n, nil
}

// decode decodes until all that the decoder has consumed is searched.
func (e *encoded) decode() error {
	if e.clean == nil {
		if _, err := e.in.r.Peek(1); err != nil { // no body, or none any more
			return err
		}
		d, err := e.open()
		if err != nil {
			return e.failed(err)
		}
		e.out = make([]byte, scratch)
		e.clean = &reader{live: e.live, r: d, told: func(g string) { e.found = g }}
	}
	for {
		_, err := e.clean.Read(e.out)
		switch {
		case e.found != "":
			return Found{e.found}
		case errors.Is(err, io.EOF):
			if _, more := e.in.r.Peek(1); more == nil {
				return fmt.Errorf("%w: there is data after its end", ErrCoding)
			} else if !errors.Is(more, io.EOF) {
				return more
			}
			return io.EOF
		case err != nil:
			return e.failed(err)
		case len(e.clean.tail) == e.clean.sent:
			return nil
		}
	}
}

// failed returns the error of reading r, or else that it cannot be decoded.
func (e *encoded) failed(err error) error {
	if e.in.err != nil && !errors.Is(e.in.err, io.EOF) {
		return e.in.err
	}
	return fmt.Errorf("%w: %w", ErrCoding, err)
}

// Close releases the decoder.
func (e *encoded) Close() error {
	if e.close != nil {
		e.close()
	}
	return nil
}

// tap keeps what is read from r. A decoder reads from it no more than it needs.
type tap struct {
	r     *bufio.Reader
	taken []byte
	err   error
}

func (t *tap) Read(p []byte) (n int, err error) {
	if len(t.taken) > maxPending {
		return 0, ErrCoding
	}
	n, err = t.r.Read(p[:min(len(p), maxPending)])
	t.taken, t.err = append(t.taken, p[:n]...), err
	return n, err
}

func (t *tap) ReadByte() (byte, error) {
	var b [1]byte
	_, err := io.ReadFull(t, b[:])
	return b[0], err
}

package lineapi

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/coppice-dev/coppice/internal/limit"
)

// errTooLong means that a line exceeded the limit and was skipped.
var errTooLong = errors.New("a line is too long")

// lines reads lines. At most one is in memory, and nothing of a line that is too long.
type lines struct {
	r     *bufio.Reader
	limit int
	// long, if not nil, is called once for a line longer than limit.LineShort, before more of it is read. An
	// error ends the stream.
	long func() error
	buf  []byte
}

func newLines(r io.Reader, limit int) *lines {
	return &lines{r: bufio.NewReaderSize(r, 16<<10), limit: limit}
}

// next returns the next line without its newline, valid until the next call. The last line of a stream needs no
// newline. After errTooLong, other lines may follow; any other error is final.
func (l *lines) next() ([]byte, error) {
	if cap(l.buf) > limit.LineShort {
		l.buf = nil
	}
	l.buf = l.buf[:0]
	asked, over := false, false
	for {
		part, err := l.r.ReadSlice('\n')
		if !over {
			l.buf = append(l.buf, part...)
		}
		if len(l.buf) > l.limit+len("\r\n") {
			l.buf, over = nil, true
		}
		if l.long != nil && !asked && len(l.buf) > limit.LineShort {
			asked = true
			if err := l.long(); err != nil {
				return nil, err
			}
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && (!errors.Is(err, io.EOF) || len(l.buf) == 0 && !over):
			return nil, err
		}
		line := bytes.TrimSuffix(bytes.TrimSuffix(l.buf, []byte("\n")), []byte("\r"))
		if over || len(line) > l.limit {
			l.buf = nil
			return nil, errTooLong
		}
		return line, nil
	}
}

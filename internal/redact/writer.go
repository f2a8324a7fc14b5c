package redact

import "io"

// Writer redacts bytes and writes them to another writer. It is not safe for concurrent use.
type Writer struct {
	w   io.Writer
	s   *Stream
	out []byte
	err error
}

// Writer returns a Writer that writes to w. The caller closes the Writer, and then w.
func (r *Redactor) Writer(w io.Writer) *Writer { return &Writer{w: w, s: r.Stream()} }

// Write takes all of b, and writes the decided output. After an error of the underlying writer, every later call
// returns that error and writes nothing.
func (w *Writer) Write(b []byte) (int, error) {
	for n := 0; n < len(b); n += piece {
		if w.err == nil {
			w.pass(w.s.Append(w.out[:0], b[n:min(n+piece, len(b))]))
		}
	}
	if w.err != nil {
		return 0, w.err
	}
	return len(b), nil
}

// Close writes the buffered output. Bytes that are written afterwards form another stream.
func (w *Writer) Close() error {
	if w.err == nil {
		w.pass(w.s.Finish(w.out[:0]))
	}
	return w.err
}

func (w *Writer) pass(out []byte) {
	w.out = out
	if len(out) > 0 {
		_, w.err = w.w.Write(out)
	}
}

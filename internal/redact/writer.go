package redact

import "io"

// Writer redacts what is written to it, and passes it on. It is not safe for concurrent use.
type Writer struct {
	w   io.Writer
	s   *Stream
	out []byte
	err error
}

// Writer returns a Writer that writes to w, which the caller closes, after the Writer.
func (r *Redactor) Writer(w io.Writer) *Writer { return &Writer{w: w, s: r.Stream()} }

// Write takes all of b, and passes on what is decided. After an error of the underlying writer, which every
// later call returns, nothing is passed on.
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

// Close passes on what was buffered. What is written afterwards is another stream.
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

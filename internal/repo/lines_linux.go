package repo

import (
	"bytes"
	"context"
)

// lines runs git at the desk, and calls fn with each line of its output. An error of fn stops git and is returned.
func (d *desk) lines(ctx context.Context, c call, fn func(string) error) error {
	return d.records(ctx, c, '\n', fn)
}

// records is lines, for records that end with another byte.
func (d *desk) records(ctx context.Context, c call, end byte, fn func(string) error) error {
	s := &splitter{end: end, fn: fn}
	c.stdout = s
	if _, err := d.run(ctx, c); err != nil {
		if s.err != nil {
			return s.err
		}
		return err
	}
	if len(s.rest) > 0 {
		return s.fn(string(s.rest))
	}
	return nil
}

// maxRecord is the maximum length of a record in bytes, far longer than any path.
const maxRecord = 64 << 10

// splitter splits its input into records.
type splitter struct {
	end  byte
	fn   func(string) error
	rest []byte
	err  error
}

func (s *splitter) Write(p []byte) (int, error) {
	n := len(p)
	for s.err == nil {
		i := bytes.IndexByte(p, s.end)
		if i < 0 {
			s.rest = append(s.rest, p...)
			if len(s.rest) > maxRecord {
				s.err = errTooMuch
				break
			}
			return n, nil
		}
		s.rest = append(s.rest, p[:i]...)
		s.err = s.fn(string(s.rest))
		s.rest, p = s.rest[:0], p[i+1:]
	}
	return 0, s.err
}

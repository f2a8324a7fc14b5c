package format

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// aheadBytes and aheadLines are how much Ahead reads before it parses: enough for the
// cores to share, little enough to hold.
const (
	aheadBytes = 1 << 20
	aheadLines = 4096
)

// Parsed is a line, as Parse and HashLine have it. ParseLine makes it.
type Parsed struct {
	Record *Record // nil with an error
	Hash   Hash
	Err    error
}

// ParseLine parses and hashes the line of a record, without its end.
func ParseLine(line []byte) Parsed {
	r, err := Parse(line)
	if err != nil {
		return Parsed{Err: err}
	}
	return Parsed{r, HashLine(line), nil}
}

// Ahead parses lines in batches, on all cores, and returns them in order. It holds at most aheadBytes and one
// more line, and between calls nothing runs.
type Ahead struct {
	read  func() ([]byte, error)
	ready []Parsed // those that were not given yet
	err   error    // of read, after them
}

// NewAhead takes lines from read, which returns each without its newline, valid until the next call, and an
// error after the last. Only Next calls it, and calls it again when Next is called after an error. An Ahead
// is not safe for concurrent use.
func NewAhead(read func() ([]byte, error)) *Ahead { return &Ahead{read: read} }

// Next returns the next line, or the error of read.
func (a *Ahead) Next() (Parsed, error) {
	if len(a.ready) == 0 && a.err == nil {
		a.ready = parseAll(a.batch())
	}
	if len(a.ready) == 0 {
		err := a.err
		a.err = nil
		return Parsed{}, err
	}
	p := a.ready[0]
	a.ready = a.ready[1:]
	return p, nil
}

// batch reads lines until there are enough, or an error.
func (a *Ahead) batch() (lines [][]byte) {
	for size := 0; size < aheadBytes && len(lines) < aheadLines; {
		line, err := a.read()
		if err != nil {
			a.err = err
			break
		}
		lines = append(lines, append([]byte(nil), line...))
		size += len(line)
	}
	return lines
}

// parseAll parses lines on all cores, and returns when all are done.
func parseAll(lines [][]byte) []Parsed {
	all := make([]Parsed, len(lines))
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(lines)) {
		wg.Go(func() {
			for i := taken.Add(1) - 1; i < int64(len(lines)); i = taken.Add(1) - 1 {
				all[i] = ParseLine(lines[i])
			}
		})
	}
	wg.Wait()
	return all
}

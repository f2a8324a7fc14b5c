package format

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// aheadBytes and aheadLines limit how much Ahead reads before it parses: enough to share among the cores, and little
// enough to hold in memory.
const (
	aheadBytes = 1 << 20
	aheadLines = 4096
)

// Parsed is a line with the results of Parse and HashLine. ParseLine makes it.
type Parsed struct {
	Record *Record // nil with an error
	Hash   Hash
	Err    error
}

// ParseLine parses and hashes the line of a record, without its newline.
func ParseLine(line []byte) Parsed {
	r, err := Parse(line)
	if err != nil {
		return Parsed{Err: err}
	}
	return Parsed{r, HashLine(line), nil}
}

// Ahead parses lines in batches, on all cores, and returns them in order. It holds at most aheadBytes and one more
// line. Between calls it runs no goroutine.
type Ahead struct {
	read  func() ([]byte, error)
	ready []Parsed // lines that Next has not returned yet
	err   error    // of read, after the ready lines
}

// NewAhead returns an Ahead that takes lines from read. read returns each line without its newline, valid until the
// next call, and an error after the last one. Only Next calls read, and it does so again if Next is called after an
// error. An Ahead is not safe for concurrent use.
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

// batch reads lines until it has enough or read fails.
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

// parseAll parses all lines on all cores.
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

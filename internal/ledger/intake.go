package ledger

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strconv"

	"github.com/coppice-dev/coppice/internal/fault"
)

// The intake is lines: of a batch its records, and then what makes them count.
//
//	B SANDBOX NAME BASE64     a capture that came with the batch, before the records
//	R FIRST OFFSET RECORD     a record, and where it belongs: segment and offset
//	C SHA256 "CHECKPOINT"     hash of the batch's lines before; the signed checkpoint after it

// entry is a record of the intake.
type entry struct {
	first  int64 // segment
	offset int64 // offset of its line in the segment
	line   []byte
}

// batch is a set of records that was appended at once.
type batch struct {
	captures   []*capture
	entries    []entry
	checkpoint []byte
}

func (e entry) encode(b []byte) []byte {
	return append(append(fmt.Appendf(b, "R %d %d ", e.first, e.offset), e.line...), '\n')
}

// commit completes a batch, given the lines of its captures and records.
func commit(lines, checkpoint []byte) []byte {
	return fmt.Appendf(lines, "C %x %s\n", sha256.Sum256(lines), strconv.Quote(string(checkpoint)))
}

// parseIntake returns the committed batches, and the end of the last one; everything after it is torn. The intake is
// damaged if an uncommitted batch is followed by another one: a batch is only started when the previous one is on the
// disk.
func parseIntake(b []byte) (all []batch, end int, err error) {
	for {
		one, n := parseBatch(b[end:])
		if n == 0 {
			break
		}
		all, end = append(all, one), end+n
	}
	for rest := b[end:]; len(rest) > 0; {
		var line []byte
		var whole bool
		line, rest, whole = bytes.Cut(rest, []byte{'\n'})
		if whole && bytes.HasPrefix(line, []byte("C ")) && len(rest) > 0 {
			return all, end, fault.New(fault.Corrupt, "log/intake of the ledger is damaged at byte %d", end)
		}
	}
	return all, end, nil
}

// parseBatch returns the batch at the start of b, and its length; 0 if it is not complete.
func parseBatch(b []byte) (one batch, n int) {
	for {
		line, _, whole := bytes.Cut(b[n:], []byte{'\n'})
		if !whole {
			return batch{}, 0
		}
		w := bytes.SplitN(line, []byte{' '}, 4)
		switch {
		case len(w) == 4 && string(w[0]) == "R":
			e := entry{first: atoi(string(w[1])), offset: atoi(string(w[2])), line: w[3]}
			if !bytes.Equal(e.encode(nil), b[n:n+len(line)+1]) {
				return batch{}, 0
			}
			one.entries = append(one.entries, e)
			n += len(line) + 1
		case len(w) == 4 && string(w[0]) == "B" && len(one.entries) == 0:
			c := parseCapture(w[1], w[2], w[3])
			if c == nil || !bytes.Equal(c.encode(nil), b[n:n+len(line)+1]) {
				return batch{}, 0
			}
			one.captures = append(one.captures, c)
			n += len(line) + 1
		case len(w) > 0 && string(w[0]) == "C" && len(one.entries) > 0:
			_, quoted, _ := bytes.Cut(line[2:], []byte{' '})
			text, err := strconv.Unquote(string(quoted))
			end := n + len(line) + 1
			if err != nil || !bytes.Equal(commit(bytes.Clone(b[:n]), []byte(text)), b[:end]) {
				return batch{}, 0
			}
			one.checkpoint = []byte(text)
			return one, end
		default:
			return batch{}, 0
		}
	}
}

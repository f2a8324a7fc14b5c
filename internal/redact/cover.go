package redact

import (
	"cmp"
	"hash"
	"slices"
)

// cover writes the input with marks in place of the covered bytes. Of overlapping spans, the first is named, until it
// ends or one of a better rank begins. A span that begins after the named one has ended is named in turn, even if
// others still cover it.
type cover struct {
	r     *Redactor
	spans []*span // begin at or after the written output, in any order
	open  []*span // have begun, and may grow
	until int64   // largest end of the other spans that have begun
	named *span   // span whose mark is pending, or nil
	mac   hash.Hash
}

// put writes b, the input from at on. All spans that begin in b must be known. An open span extends to the end of b,
// or beyond.
func (c *cover) put(dst, b []byte, at int64) []byte {
	if len(c.spans) > 0 {
		slices.SortFunc(c.spans, func(a, b *span) int {
			return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.rank, b.rank), cmp.Compare(b.size, a.size),
				cmp.Compare(a.index, b.index))
		})
	}
	end, next := at+int64(len(b)), 0
	for at < end {
		if c.named != nil && !c.named.open && c.named.to <= at {
			dst = c.mark(dst)
		}
		for ; next < len(c.spans) && c.spans[next].from <= at; next++ {
			dst = c.begin(dst, c.spans[next], at)
		}
		stop := end
		if next < len(c.spans) {
			stop = min(stop, c.spans[next].from)
		}
		to := min(stop, c.covered(end))
		if c.named != nil && c.named.to > at {
			to = min(to, c.named.to)
		}
		if to <= at {
			dst = append(dst, b[len(b)-int(end-at):len(b)-int(end-stop)]...)
			at = stop
			continue
		}
		if c.mac != nil {
			c.mac.Write(b[len(b)-int(end-at) : len(b)-int(end-to)])
		}
		at = to
	}
	if c.named != nil && !c.named.open && c.named.to <= at {
		dst = c.mark(dst)
	}
	c.spans = slices.Delete(c.spans, 0, next)
	return dst
}

// begin adds a span that begins at a position.
func (c *cover) begin(dst []byte, sp *span, at int64) []byte {
	if sp.open {
		c.open = append(c.open, sp)
	} else {
		c.until = max(c.until, sp.to)
	}
	if c.named != nil && c.named.rank <= sp.rank || sp.to <= at && !sp.open {
		return dst
	}
	dst = c.mark(dst)
	c.named = sp
	if sp.print == "" {
		c.mac = c.r.mac()
	}
	return dst
}

// covered returns the end of the open spans, at most end.
func (c *cover) covered(end int64) int64 {
	c.open = slices.DeleteFunc(c.open, func(sp *span) bool {
		if !sp.open {
			c.until = max(c.until, sp.to)
		}
		return !sp.open
	})
	if len(c.open) > 0 {
		return end
	}
	return c.until
}

// mark writes the pending mark.
func (c *cover) mark(dst []byte) []byte {
	if c.named == nil {
		return dst
	}
	print := c.named.print
	if c.mac != nil {
		print = seal(c.mac)
	}
	dst = append(dst, mark(c.named.name, print)...)
	c.named, c.mac = nil, nil
	return dst
}

// end writes the pending mark at the end of the input.
func (c *cover) end(dst []byte) []byte { return c.mark(dst) }

package ledger

import (
	"maps"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// Draft is a record to append. Its text is redacted: see format.Record.
type Draft struct {
	Sandbox  format.Sandbox
	Name     string // the name of the sandbox
	Observer format.Observer
	Policy   string // digest of the policy in force
	Tier     string
	Body     format.Body
}

// state is the state at the end of the log and of the chains.
type state struct {
	tree   format.Tree
	heads  map[format.Sandbox]head
	intake int64           // length of the intake
	dirty  map[string]bool // files that a fold flushes
}

// write is a write of bytes at one offset of a file.
type write struct {
	file   string
	offset int64
	bytes  []byte
}

// plan holds the effects of an append, which are decided before any of them is carried out.
type plan struct {
	tree    format.Tree
	heads   map[format.Sandbox]head // those that change
	lines   []byte                  // for the intake
	writes  []write                 // for the segments, and captures
	hashes  []byte                  // for the stored hashes
	before  int64                   // leaves before
	segment int64                   // maximum bytes of a segment
	removed []format.Sandbox        // the sandboxes whose records are removed
}

func (s *state) plan(segment int64) *plan {
	return &plan{tree: s.tree.Clone(), heads: map[format.Sandbox]head{}, before: s.tree.Size(), segment: segment}
}

// add plans some records, all of them or none.
func (p *plan) add(s *state, now time.Time, drafts []Draft) ([]format.Record, error) {
	was := *p
	was.tree, was.heads = p.tree.Clone(), maps.Clone(p.heads)
	records := make([]format.Record, 0, len(drafts))
	for i := range drafts {
		r, err := p.one(s, now, &drafts[i])
		if err != nil {
			*p = was
			return nil, err
		}
		records = append(records, *r)
	}
	return records, nil
}

func (p *plan) one(s *state, now time.Time, d *Draft) (*format.Record, error) {
	h, changed := p.heads[d.Sandbox]
	if !changed {
		h = s.heads[d.Sandbox]
	}
	if h.removed {
		return nil, fault.New(fault.NotFound, "the ledger of %s was removed", d.Sandbox)
	}
	r := &format.Record{Body: d.Body, Leaf: p.tree.Size(), Name: d.Name, Observer: d.Observer, Policy: d.Policy,
		Prev: h.hash, Sandbox: d.Sandbox, Seq: h.seq + 1, Tier: d.Tier, Time: now.UTC()}
	line, err := format.Encode(r)
	if err != nil {
		return nil, err
	}
	if full := h.bytes > 0 && h.bytes+int64(len(line)) >= p.segment; full || h.seq == 0 {
		h.first, h.bytes = r.Seq, 0
	}
	p.place(d.Sandbox, h, r, line)
	return r, nil
}

// place plans the line of a record at the end h of its chain.
func (p *plan) place(id format.Sandbox, h head, r *format.Record, line []byte) {
	p.lines = entry{h.first, h.bytes, line}.encode(p.lines)
	file := segment(id, h.first)
	if n := len(p.writes); n > 0 && p.writes[n-1].file == file {
		p.writes[n-1].bytes = append(append(p.writes[n-1].bytes, line...), '\n')
	} else {
		p.writes = append(p.writes, write{file, h.bytes, append(append([]byte(nil), line...), '\n')})
	}
	h.seq, h.hash, h.bytes = r.Seq, format.HashLine(line), h.bytes+int64(len(line))+1
	p.heads[id] = h
	if gone, ok := r.Body.(*format.Delete); ok && gone.Ledger && id == format.Host {
		p.removed = append(p.removed, format.Sandbox(gone.Sandbox))
	}
	for _, stored := range p.tree.Add(h.hash) {
		p.hashes = append(p.hashes, stored[:]...)
	}
}

// withCaptures returns the lines of the plan's batch, preceded by captures, and adds these to the plan.
func (p *plan) withCaptures(all []*capture) (lines []byte) {
	for _, c := range all {
		lines = c.encode(lines)
		p.writes = append(p.writes, write{c.file(), 0, c.content})
	}
	return append(lines, p.lines...)
}

// took updates the state with an executed plan.
func (s *state) took(p *plan) {
	maps.Copy(s.heads, p.heads)
	for _, id := range p.removed {
		h := s.heads[id]
		h.removed = true
		s.heads[id] = h
	}
	s.tree = p.tree
}

// replay plans the effects of a batch of the intake; nil if the state already includes it.
func replay(s *state, keys format.Keys, b batch) (*plan, error) {
	p := s.plan(0)
	c, err := keys.Checkpoint(b.checkpoint)
	if err != nil {
		return nil, err
	}
	if c.Size <= s.tree.Size() {
		return nil, nil
	}
	for _, e := range b.entries {
		r, err := format.Parse(e.line)
		if err != nil {
			return nil, err
		}
		h, changed := p.heads[r.Sandbox]
		if !changed {
			h = s.heads[r.Sandbox]
		}
		if e.offset == 0 {
			h.first, h.bytes = e.first, 0
		}
		if r.Leaf != p.tree.Size() || r.Seq != h.seq+1 || r.Prev != h.hash || e.first != h.first || e.offset != h.bytes {
			return nil, fault.New(fault.Corrupt,
				"log/intake of the ledger does not continue the flushed records: record %d of %s",
				r.Seq, r.Sandbox)
		}
		p.place(r.Sandbox, h, r, e.line)
	}
	p.withCaptures(b.captures)
	if p.tree.Size() != c.Size || p.tree.Root() != c.Root {
		return nil, fault.New(fault.Corrupt, "log/intake of the ledger does not match its checkpoint of size %d",
			c.Size)
	}
	return p, nil
}

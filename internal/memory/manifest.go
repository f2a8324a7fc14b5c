package memory

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"

	"github.com/coppice-dev/coppice/internal/fault"
)

const manifestMagic = "coppice-image-01"

// manifest says where each page of an image is stored, and which small files it has.
type manifest struct {
	facts Facts
	small [len(smallNames)]small
	packs []digest // ids, in the order in which runs first use them
	runs  []run
}

// small is a file that is stored as one piece.
type small struct {
	size int64
	sum  digest
}

// run is a stretch of an image's pages.
type run struct {
	pack  uint32 // 0: pages of zeros; else 1 + index in packs
	first uint32 // the first page in the pack; 0 for zeros
	count uint32 // pages, at least 1
}

// pages counts the pages of the image, and those of zeros.
func (m *manifest) pages() (all, zero int64) {
	for _, r := range m.runs {
		all += int64(r.count)
		if r.pack == 0 {
			zero += int64(r.count)
		}
	}
	return all, zero
}

// image returns the description of an image for callers.
func (m *manifest) image(id ID) Image {
	all, zero := m.pages()
	return Image{ID: id, Size: m.small[0].size + m.small[1].size + all*pageSize, Pages: all, ZeroPages: zero,
		Facts: m.facts}
}

// add appends a run, or extends the last one if r continues it.
func (m *manifest) add(r run) {
	if n := len(m.runs); n > 0 && m.runs[n-1].leadsTo(r) {
		m.runs[n-1].count += r.count
		return
	}
	m.runs = append(m.runs, r)
}

// leadsTo reports whether next continues r.
func (r run) leadsTo(next run) bool {
	return r.pack == next.pack && (r.pack == 0 || r.first+r.count == next.first)
}

// encode returns the bytes of a manifest, and its ID.
func (m *manifest) encode() ([]byte, ID, error) {
	facts, err := m.facts.encode()
	if err != nil {
		return nil, "", err
	}
	b := append([]byte(manifestMagic), binary.AppendUvarint(nil, uint64(len(facts)))...)
	b = append(b, facts...)
	for _, f := range m.small {
		b = append(binary.AppendUvarint(b, uint64(f.size)), f.sum[:]...)
	}
	b = binary.AppendUvarint(b, uint64(len(m.packs)))
	for _, p := range m.packs {
		b = append(b, p[:]...)
	}
	b = binary.AppendUvarint(b, uint64(len(m.runs)))
	next := make([]uint32, len(m.packs)+1) // for each pack, the page after its last run
	for _, r := range m.runs {
		b = binary.AppendUvarint(b, uint64(r.pack))
		b = binary.AppendUvarint(b, uint64(r.count))
		if r.pack > 0 {
			b = binary.AppendVarint(b, int64(r.first)-int64(next[r.pack]))
			next[r.pack] = r.first + r.count
		}
	}
	if len(b) > maxStored {
		return nil, "",
			fault.New(fault.Unsupported,
				"a memory image has %d runs of pages, more than its manifest can hold", len(m.runs))
	}
	return b, ID(digest(sha256.Sum256(b)).String()), nil
}

// decodeManifest decodes a manifest strictly: each manifest has only one encoding, and everything else is Corrupt, or
// Version for a later format.
func decodeManifest(b []byte) (*manifest, error) {
	r := reader{b: b}
	if err := r.magic(manifestMagic); err != nil {
		return nil, err
	}
	m := &manifest{}
	facts := r.take(r.upTo(maxFacts))
	for i := range m.small {
		m.small[i].size = int64(r.upTo(maxSmall))
		copy(m.small[i].sum[:], r.take(len(digest{})))
	}
	for range r.upTo(uint64(len(r.b) / len(digest{}))) {
		m.packs = append(m.packs, r.array())
	}
	m.readRuns(&r)
	if r.bad || len(r.b) > 0 {
		return nil, fault.New(fault.Corrupt, "the manifest of a memory image is malformed")
	}
	if err := json.Unmarshal(facts, &m.facts); err != nil {
		return nil, fault.New(fault.Corrupt, "the facts of a memory image are malformed").Because(err)
	}
	if again, _, err := m.encode(); err != nil || !bytes.Equal(again, b) {
		return nil, fault.New(fault.Corrupt, "the manifest of a memory image is not in canonical form")
	}
	return m, nil
}

// readRuns reads the runs and checks that they are canonical: no run continues the one before, and packs are in the
// order of their first use.
func (m *manifest) readRuns(r *reader) {
	next := make([]uint32, len(m.packs)+1)
	var used uint32
	total := uint64(0)
	n := r.upTo(uint64(len(r.b) / 2))
	m.runs = make([]run, 0, n)
	for range n {
		one := run{pack: uint32(r.upTo(uint64(len(m.packs)))), count: uint32(r.upTo(maxPages))}
		total += uint64(one.count)
		if one.pack > 0 {
			first := int64(next[one.pack]) + r.signed()
			if first < 0 || first+int64(one.count) > maxPages {
				r.bad = true
				return
			}
			one.first = uint32(first)
			next[one.pack] = one.first + one.count
		}
		if one.pack > used {
			used++
		}
		before := len(m.runs) - 1
		if r.bad || one.count == 0 || total > maxPages || one.pack > used || before >= 0 && m.runs[before].leadsTo(one) {
			r.bad = true
			return
		}
		m.runs = append(m.runs, one)
	}
	r.bad = r.bad || int(used) != len(m.packs)
}

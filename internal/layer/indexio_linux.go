package layer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// indexMagic begins an index; its last two digits are the version.
const indexMagic = "coppice-index-01"

const maxIndexSize = 1 << 34

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// WriteTo writes the index: magic, length, payload, checksum; docs/FORMAT.md describes the payload.
func (x *Index) WriteTo(w io.Writer) (int64, error) {
	iw := indexWriter{w: w, b: make([]byte, 0, indexBufSize+storedEnt+1<<8)}
	iw.b = append(iw.b, indexMagic...)
	iw.b = binary.LittleEndian.AppendUint64(iw.b, uint64(x.size()))
	iw.u32(len(x.origins))
	for _, o := range x.origins {
		iw.text(string(o))
	}
	iw.u32(len(x.roots))
	for i := range x.roots {
		r := &x.roots[i]
		iw.u32(len(r.path))
		iw.text(r.path)
		iw.b = appendEnt(iw.b, &r.self)
		iw.node(r.node)
	}
	iw.flush()
	iw.b = binary.LittleEndian.AppendUint32(iw.b, iw.sum)
	iw.flush()
	return iw.total, iw.err
}

// size is the length of the payload.
func (x *Index) size() int {
	n := 4 + 4
	for _, o := range x.origins {
		n += len(o)
	}
	for i := range x.roots {
		n += 4 + len(x.roots[i].path) + storedEnt + x.roots[i].node.size()
	}
	return n
}

func (d *dirNode) size() int {
	n := 4
	for i := range d.ents {
		e := &d.ents[i]
		n += storedEnt + int(e.nameLen)
		if e.isDir() {
			n += d.kids[e.kid].size()
		}
	}
	return n
}

// indexBufSize is the number of bytes of an index that are written at a time.
const indexBufSize = 64 << 10

// indexWriter writes the bytes that are appended to b. After an error it only counts.
type indexWriter struct {
	w     io.Writer
	b     []byte
	sum   uint32 // of what was written
	total int64
	err   error
}

func (iw *indexWriter) flush() {
	iw.sum = crc32.Update(iw.sum, castagnoli, iw.b)
	if iw.err == nil {
		var n int
		n, iw.err = iw.w.Write(iw.b)
		iw.total += int64(n)
	}
	iw.b = iw.b[:0]
}

func (iw *indexWriter) u32(n int) { iw.b = binary.LittleEndian.AppendUint32(iw.b, uint32(n)) }

func (iw *indexWriter) text(s string) {
	iw.b = append(iw.b, s...)
	if len(iw.b) >= indexBufSize {
		iw.flush()
	}
}

// node writes a directory: its entries, each followed by its name and, for a directory, by its node.
func (iw *indexWriter) node(d *dirNode) {
	iw.u32(len(d.ents))
	for i := range d.ents {
		e := &d.ents[i]
		iw.b = appendEnt(iw.b, e)
		iw.b = append(iw.b, d.name(e)...)
		if len(iw.b) >= indexBufSize {
			iw.flush()
		}
		if e.isDir() {
			iw.node(d.kids[e.kid])
		}
	}
}

func appendEnt(b []byte, e *ent) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, e.ino)
	b = le.AppendUint64(b, uint64(e.ctime))
	b = le.AppendUint64(b, uint64(e.mtime))
	b = le.AppendUint64(b, uint64(e.size))
	b = le.AppendUint32(b, e.mode)
	b = le.AppendUint32(b, e.uid)
	b = le.AppendUint32(b, e.gid)
	b = le.AppendUint32(b, e.nlink)
	b = le.AppendUint16(b, e.origin)
	return append(b, e.nameLen, e.flags)
}

// storedEnt is the size of an entry as appendEnt writes it.
const storedEnt = 8*4 + 4*4 + 2 + 2

// ReadIndex reads the output of WriteTo. It returns Corrupt for a torn or altered index, and Version for another
// version; in both cases the caller treats the index as missing.
func ReadIndex(r io.Reader) (*Index, error) {
	br := bufio.NewReader(r)
	head := make([]byte, len(indexMagic)+8)
	if _, err := io.ReadFull(br, head); err != nil {
		return nil, torn(err)
	}
	if magic := string(head[:len(indexMagic)]); magic != indexMagic {
		if magic[:len(magic)-2] == indexMagic[:len(indexMagic)-2] {
			return nil, fault.New(fault.Version, "index has version %q; this build knows %q", magic[len(magic)-2:],
				indexMagic[len(indexMagic)-2:]).
				WithHint("use the build of coppice that wrote it")
		}
		return nil, fault.New(fault.Corrupt, "not an index")
	}
	n := binary.LittleEndian.Uint64(head[len(indexMagic):])
	if n > maxIndexSize {
		return nil, fault.New(fault.Corrupt, "index claims %d bytes", n)
	}
	b, err := io.ReadAll(io.LimitReader(br, int64(n)+5))
	if err != nil {
		return nil, torn(err)
	}
	if uint64(len(b)) != n+4 {
		return nil, torn(io.ErrUnexpectedEOF)
	}
	body, tail := b[:n], b[n:]
	sum := crc32.Checksum(head, castagnoli)
	if crc32.Update(sum, castagnoli, body) != binary.LittleEndian.Uint32(tail) {
		return nil, fault.New(fault.Corrupt, "index fails its checksum")
	}
	p := indexParser{b: body}
	x := p.index()
	if p.err != nil || len(p.b) != 0 {
		return nil, fault.New(fault.Corrupt, "index is malformed").Because(p.err)
	}
	return x, nil
}

func torn(err error) error {
	return fault.New(fault.Corrupt, "truncated index").Because(err)
}

var errShort = errors.New("unexpected end")

// indexParser decodes the payload; after an error it returns zeros.
type indexParser struct {
	b   []byte
	err error
}

func (p *indexParser) take(n int) []byte {
	if p.err != nil || n > len(p.b) {
		if p.err == nil {
			p.err = errShort
		}
		p.b = nil
		return make([]byte, min(n, 64))
	}
	out := p.b[:n]
	p.b = p.b[n:]
	return out
}

func (p *indexParser) count(each int) int {
	n := binary.LittleEndian.Uint32(p.take(4))
	if int64(n)*int64(each) > int64(len(p.b)) {
		if p.err == nil {
			p.err = errShort
		}
		return 0
	}
	return int(n)
}

func (p *indexParser) index() *Index {
	x := &Index{}
	for range p.count(16) {
		id := timeline.LayerID(p.take(16))
		if !validID(id) {
			p.err = errors.New("malformed layer id")
		}
		x.origins = append(x.origins, id)
	}
	for range p.count(storedEnt) {
		r := rootEnt{path: string(p.take(p.count(1)))}
		r.self = p.ent()
		r.node = p.node(0)
		x.roots = append(x.roots, r)
		if p.err != nil {
			break
		}
	}
	return x
}

func (p *indexParser) ent() ent {
	b := p.take(storedEnt)
	le := binary.LittleEndian
	return ent{
		ino: le.Uint64(b), ctime: int64(le.Uint64(b[8:])), mtime: int64(le.Uint64(b[16:])), size: int64(le.Uint64(b[24:])),
		mode: le.Uint32(b[32:]), uid: le.Uint32(b[36:]), gid: le.Uint32(b[40:]), nlink: le.Uint32(b[44:]),
		origin: le.Uint16(b[48:]), nameLen: b[50], flags: b[51],
	}
}

func (p *indexParser) node(depth int) *dirNode {
	d := &dirNode{}
	n := p.count(storedEnt + 1)
	if depth > limit.Depth {
		p.err = errors.New("too deep")
	}
	if p.err != nil {
		return d
	}
	d.ents = make([]ent, 0, n)
	for range n {
		e := p.ent()
		if p.err != nil {
			break
		}
		if e.nameLen == 0 {
			p.err = errors.New("entry without a name")
			break
		}
		e.nameOff = uint32(len(d.names))
		d.names = append(d.names, p.take(int(e.nameLen))...)
		if e.isDir() {
			e.kid = uint32(len(d.kids))
			d.kids = append(d.kids, p.node(depth+1))
		}
		d.ents = append(d.ents, e)
	}
	return d
}

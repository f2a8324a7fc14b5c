package ledger

import (
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

const hashSize = int64(len(format.Hash{}))

// storedCount returns the number of hashes that are stored for n leaves.
func storedCount(n int64) int64 { return tlog.StoredHashCount(n) }

func parent(name string) string { return filepath.Dir(name) }

// stored is the open file of the tree's hashes. Hashes near the last one are cached, so it is not safe for
// concurrent use.
type stored struct {
	f    *os.File
	buf  []byte
	from int64 // of buf
}

// hashes opens the stored hashes. The caller closes them.
func (r Reader) hashes() (*stored, error) {
	f, err := openAt(r.root, fileHashes, os.O_RDONLY)
	return &stored{f: f}, err
}

// Close closes the file.
func (s *stored) Close() { s.f.Close() }

// at returns the hash at an index.
func (s *stored) at(i int64) (h format.Hash, err error) {
	off := i * hashSize
	if off < s.from || off+hashSize > s.from+int64(len(s.buf)) {
		s.buf, s.from = append(s.buf[:0], make([]byte, 16<<10)...), off
		n, err := s.f.ReadAt(s.buf, off)
		s.buf = s.buf[:n]
		if int64(n) < hashSize {
			return h, fault.New(fault.Corrupt, "log/hashes of the ledger is truncated").Because(err)
		}
	}
	copy(h[:], s.buf[off-s.from:])
	return h, nil
}

// ReadHashes implements tlog.HashReader.
func (s *stored) ReadHashes(at []int64) ([]tlog.Hash, error) {
	all := make([]tlog.Hash, len(at))
	for i, one := range at {
		h, err := s.at(one)
		if err != nil {
			return nil, err
		}
		all[i] = tlog.Hash(h)
	}
	return all, nil
}

// tree returns the tree of a checkpoint, and checks that its edge has the root of the checkpoint.
func (s *stored) tree(c format.Checkpoint) (format.Tree, error) {
	var edge []format.Hash
	for _, at := range format.EdgeIndexes(c.Size) {
		h, err := s.at(at)
		if err != nil {
			return format.Tree{}, err
		}
		edge = append(edge, h)
	}
	t := format.NewTree(c.Size, edge)
	if t.Root() != c.Root {
		return t, fault.New(fault.Corrupt, "log/hashes of the ledger does not match its checkpoint of size %d", c.Size)
	}
	return t, nil
}

package memory

import (
	"crypto/sha256"
	"errors"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
)

// putSmall stores a small file, flushed, and returns the disk space that it used. A file that is stored already is
// written again, which repairs a damaged one; the rename leaves either the old or the new one.
func (s *Store) putSmall(b []byte) (f small, added int64, isNew bool, err error) {
	f = small{size: int64(len(b)), sum: sha256.Sum256(b)}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return f, 0, false, err
	}
	name := scratch("blob")
	if err := s.write(s.tmp, name, z.EncodeAll(b, nil), true); err != nil {
		return f, 0, false, err
	}
	before, err := dirfd.Lstat(s.blobs, f.sum.String())
	isNew = errors.Is(err, unix.ENOENT)
	if err := s.fs.Rename(s.tmp, name, s.blobs, f.sum.String()); err != nil {
		_ = s.fs.Unlink(s.tmp, name) // swept when the store is opened
		return f, 0, false, err
	}
	after, err := dirfd.Lstat(s.blobs, f.sum.String())
	return f, onDisk(&after) - onDisk(&before), isNew, err
}

// small reads a small file and checks that it is what was stored.
func (s *Store) small(f small) ([]byte, error) {
	// Incompressible data becomes a little larger.
	b, err := readAt(s.blobs, f.sum.String(), f.size+f.size/64+1024)
	if err == nil {
		b, err = unpack(b, f.size)
	}
	switch {
	case err == nil && int64(len(b)) == f.size && sha256.Sum256(b) == f.sum:
		return b, nil
	case transient(err):
		return nil, err
	}
	return nil, corrupt("%s/%s does not match its digest", blobsDir, f.sum).Because(err)
}

// unpack returns the size bytes that b was made from. It never unpacks more.
func unpack(b []byte, size int64) ([]byte, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(uint64(max(size, 1<<20))))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	return z.DecodeAll(b, make([]byte, 0, size))
}

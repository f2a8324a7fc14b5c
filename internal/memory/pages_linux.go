package memory

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// chunk is how many pages are read at a time: 1 MiB.
const chunk = 256

var (
	zeroPage [pageSize]byte
	buffers  = sync.Pool{New: func() any { b := make([]byte, chunk*pageSize); return &b }}
)

// isZero reports whether a page, or a part of one, is all zeros.
func isZero(p []byte) bool { return bytes.Equal(p, zeroPage[:len(p)]) }

// hashPage returns the digest of a page; that of a page of zeros is zero.
func hashPage(p []byte) digest {
	if isZero(p) {
		return digest{}
	}
	return sha256.Sum256(p)
}

// spread calls fn(buffer, i) for each i below n, on that many workers, and waits for all calls. After an error, or
// when ctx is canceled, it starts no further call.
func spread(ctx context.Context, n, workers int, fn func(buf []byte, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(workers, n) {
		g.Go(func() error {
			buf := buffers.Get().(*[]byte)
			defer buffers.Put(buf)
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return nil
				}
				if err := context.Cause(ctx); err != nil {
					return err
				}
				if err := fn(*buf, i); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// hashFile returns the digests of a file's pages. Holes are not read.
func hashFile(ctx context.Context, fd int, pages, workers int) ([]digest, error) {
	out := make([]digest, pages)
	return out, spread(ctx, (pages+chunk-1)/chunk, workers, func(buf []byte, i int) error {
		first := i * chunk
		n := min(chunk, pages-first)
		if inHole(fd, first, n) {
			return nil
		}
		if err := readFull(fd, buf[:n*pageSize], int64(first)*pageSize); err != nil {
			return err
		}
		for k := range n {
			out[first+k] = hashPage(buf[k*pageSize : (k+1)*pageSize])
		}
		return nil
	})
}

// inHole reports whether none of n pages has data on the disk.
func inHole(fd, first, n int) bool {
	off := int64(first) * pageSize
	data, err := unix.Seek(fd, off, unix.SEEK_DATA)
	return errors.Is(err, unix.ENXIO) || err == nil && data >= off+int64(n)*pageSize
}

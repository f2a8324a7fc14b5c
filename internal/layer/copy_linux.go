package layer

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/vfs"
)

const (
	copyBufSize = 128 << 10
	smallFile   = copyBufSize // maximum size of a file that goes through the buffer
	copyStep    = 32 << 20    // bytes that the kernel copies between two checks of the context
)

var copyBufs = sync.Pool{New: func() any { b := make([]byte, copyBufSize); return &b }}

// copyContent copies size bytes from src to the new file dst: with shared extents if the file system supports
// them, and holes as holes. st is src's state. It stops when ctx is canceled.
func (s *Store) copyContent(ctx context.Context, dst, src int, st *unix.Stat_t) error {
	switch {
	case st.Size == 0:
		return nil
	case st.Size > smallFile && !s.noClone.Load():
		err := s.fs.Clone(dst, src)
		if err == nil {
			return nil
		}
		if !errors.Is(err, vfs.ErrNoClone) {
			return err
		}
		s.noClone.Store(true)
	}
	return s.copyBytes(ctx, dst, src, st)
}

// copyBytes is copyContent without shared extents.
func (s *Store) copyBytes(ctx context.Context, dst, src int, st *unix.Stat_t) error {
	if st.Size == 0 {
		return nil
	}
	if st.Size <= smallFile && st.Blocks*512 >= st.Size {
		return s.copyBuffered(ctx, dst, src, 0, st.Size)
	}
	if st.Blocks*512 >= st.Size {
		return s.copyRange(ctx, dst, src, 0, st.Size)
	}
	return s.copySparse(ctx, dst, src, st.Size)
}

// copySparse copies the data of a file, and leaves its holes.
func (s *Store) copySparse(ctx context.Context, dst, src int, size int64) error {
	for off := int64(0); off < size; {
		data, err := unix.Seek(src, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return s.copyBuffered(ctx, dst, src, off, size)
		}
		end, err := unix.Seek(src, data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		end = min(end, size)
		if data >= end {
			break
		}
		copyPart := s.copyRange
		if end-data <= smallFile {
			copyPart = s.copyBuffered
		}
		if err := copyPart(ctx, dst, src, data, end); err != nil {
			return err
		}
		off = end
	}
	return s.fs.Truncate(dst, size)
}

// copyRange copies [from, to) in the kernel, and through a buffer if the kernel refuses.
func (s *Store) copyRange(ctx context.Context, dst, src int, from, to int64) error {
	for from < to {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := s.fs.CopyRange(dst, src, from, min(to-from, copyStep))
		switch {
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP),
			errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
			return s.copyBuffered(ctx, dst, src, from, to)
		case err != nil:
			return err
		case n == 0:
			// The file shrank, or the file system returns 0 where it should return an error.
			return s.copyBuffered(ctx, dst, src, from, to)
		}
		from += n
	}
	return nil
}

// copyBuffered copies [from, to) through a buffer. It stops early if the file is shorter.
func (s *Store) copyBuffered(ctx context.Context, dst, src int, from, to int64) error {
	bp := copyBufs.Get().(*[]byte)
	defer copyBufs.Put(bp)
	for from < to {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.Pread(src, (*bp)[:min(to-from, copyBufSize)], from)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		if err := s.fs.WriteAt(dst, (*bp)[:n], from); err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}

// dataFrom returns the offset of the next data at or after off in a file of the given size; size if only a hole is
// left. If the file system cannot tell, everything counts as data.
func dataFrom(fd int, off, size int64) int64 {
	data, err := unix.Seek(fd, off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size
	case err != nil:
		return off
	}
	return data
}

// sameContent compares two open files of the same size. It reads only where one of them has data, so the cost grows
// with the data and not with the size.
func sameContent(ctx context.Context, a, b int, size int64) (bool, error) {
	pa, pb := copyBufs.Get().(*[]byte), copyBufs.Get().(*[]byte)
	defer copyBufs.Put(pa)
	defer copyBufs.Put(pb)
	for off := int64(0); off < size; {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		if off = min(dataFrom(a, off, size), dataFrom(b, off, size)); off >= size {
			return true, nil
		}
		want := int(min(size-off, copyBufSize))
		na, err := preadFull(a, (*pa)[:want], off)
		if err != nil {
			return false, err
		}
		nb, err := preadFull(b, (*pb)[:want], off)
		if err != nil {
			return false, err
		}
		if na != nb || string((*pa)[:na]) != string((*pb)[:nb]) {
			return false, nil
		}
		if na < want {
			return true, nil
		}
		off += int64(want)
	}
	return true, nil
}

// preadFull reads until p is full or the file ends.
func preadFull(fd int, p []byte, off int64) (n int, err error) {
	for n < len(p) {
		m, err := unix.Pread(fd, p[n:], off+int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, err
		}
		if m == 0 {
			break
		}
		n += m
	}
	return n, nil
}

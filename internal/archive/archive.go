// Package archive opens untrusted tar archives: it detects their compression, and limits the unpacked size. It
// imports fault and limit; layer and boxfs import it.
package archive

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

const (
	// ratioFrom is the number of unpacked bytes above which limit.ArchiveRatio applies. The ratio of deflate is at
	// most about 1,030, and that of file trees seldom 20.
	ratioFrom = 64 << 20
	// maxXzDict limits the window of xz, in addition to the caller's limits.
	maxXzDict = 256 << 20
	// bufSize is the size of one read.
	bufSize = 256 << 10
)

// Limits bound one archive, in bytes.
type Limits struct {
	Bytes  int64 // content of all files
	Window int   // memory for the decompression window
}

// Open returns the tar stream of src, unpacked if its first bytes are those of gzip, zstd or xz. Reading fails with
// TooLarge when the content of its files exceeds the limit, or when the compression ratio is that of a bomb, and with
// the cause of ctx when ctx ends. The caller must call done.
func Open(ctx context.Context, src io.Reader, limits Limits) (plain io.Reader, done func(), err error) {
	in := &meter{ctx: ctx, r: src}
	br := bufio.NewReaderSize(in, bufSize)
	head, err := br.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, Damaged(err)
	}
	out := &bounded{in: in, left: limits.Bytes + limits.Bytes/8 + 1<<30} // headers and padding count, too
	done = func() {}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		out.r, err = gzip.NewReader(br)
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		var d *zstd.Decoder
		if d, err = zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30),
			zstd.WithDecoderMaxWindow(uint64(limits.Window))); err == nil {
			out.r, done = d, d.Close
		}
	case bytes.HasPrefix(head, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		out.r, err = xz.ReaderConfig{DictCap: min(limits.Window, maxXzDict)}.NewReader(br)
	default:
		out.r, out.in, err = br, nil, nil
	}
	if err != nil {
		return nil, nil, fault.New(fault.Invalid, "cannot decompress the archive").Because(err)
	}
	return out, done, nil
}

// Damaged returns an error that says that the archive is damaged, unless err has a more specific kind.
func Damaged(err error) error {
	if k := fault.KindOf(err); k != fault.Internal {
		return err
	}
	return fault.New(fault.Invalid, "the archive is damaged or truncated").Because(err)
}

// meter counts bytes read, and fails when the context ends.
type meter struct {
	ctx context.Context
	r   io.Reader
	n   atomic.Int64
}

func (m *meter) Read(p []byte) (int, error) {
	if m.ctx.Err() != nil {
		return 0, context.Cause(m.ctx)
	}
	n, err := m.r.Read(p)
	m.n.Add(int64(n))
	return n, err
}

// bounded fails on a stream that is too long, or whose compression ratio is too high.
type bounded struct {
	r    io.Reader
	in   *meter // counts the compressed bytes; nil if not compressed
	n    int64
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.n += int64(n)
	b.left -= int64(n)
	if b.left < 0 {
		return 0, fault.New(fault.TooLarge, "the archive exceeds the size limit")
	}
	if b.in != nil && b.n > ratioFrom && b.n/limit.ArchiveRatio > b.in.n.Load() {
		return 0, fault.New(fault.TooLarge, "the archive unpacks to more than %d times its size: possible decompression bomb",
			limit.ArchiveRatio).
			WithHint("unpack it first, and use the directory or an uncompressed archive")
	}
	return n, err
}

// Fits refuses the name of an entry that is longer than any path the kernel accepts, with TooLarge. Every importer
// calls it first: the cost of processing a name grows with its depth.
func Fits(name string) error {
	if len(name) <= limit.ArchiveName {
		return nil
	}
	return fault.New(fault.TooLarge, "the archive has a name of %d bytes, more than the limit of %d: %.60q...", len(name),
		limit.ArchiveName, name).
		WithHint("list its names: tar -tf ARCHIVE")
}

// Name splits the path of an entry into names below the unpack directory. ok is false if the path would lead out of
// it or is invalid; absolute reports a leading slash.
func Name(path string) (names []string, absolute, ok bool) {
	absolute = strings.HasPrefix(path, "/")
	if len(path) > limit.ArchiveName {
		return nil, absolute, false
	}
	for c := range strings.SplitSeq(path, "/") {
		switch {
		case c == "" || c == ".":
		case c == ".." || len(c) > 255 || strings.IndexByte(c, 0) >= 0:
			return nil, absolute, false
		default:
			names = append(names, c)
		}
	}
	return names, absolute, true
}

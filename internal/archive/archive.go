// Package archive opens untrusted tar archives: it finds how one is compressed, and
// bounds what comes out. It imports fault; layer and boxfs import it.
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
	// ratioFrom is how many bytes come out of an archive before limit.ArchiveRatio counts:
	// deflate cannot honestly do better than about 1,030, and file trees seldom reach 20.
	ratioFrom = 64 << 20
	// maxXzDict bounds the window of xz besides what the caller does.
	maxXzDict = 256 << 20
	// bufSize is how much is read at once.
	bufSize = 256 << 10
)

// Limits bound one archive, in bytes.
type Limits struct {
	Bytes  int64 // of the content of its files
	Window int   // of memory that its compression may ask for to look back
}

// Open gives the tar stream of src: itself, or what gzip, zstd or xz made it from,
// told by its first bytes. Reading fails with TooLarge when the content of its files
// can only be more than the limit, or when it unpacks to so much that it is a bomb,
// and with the cause of ctx when that ends. The caller calls done in the end.
func Open(ctx context.Context, src io.Reader, limits Limits) (plain io.Reader, done func(), err error) {
	in := &meter{ctx: ctx, r: src}
	br := bufio.NewReaderSize(in, bufSize)
	head, err := br.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, Damaged(err)
	}
	out := &bounded{in: in, left: limits.Bytes + limits.Bytes/8 + 1<<30} // of headers and padding, too
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

// Damaged says of an error of reading an archive that the archive is at fault, unless
// it has a kind that says more.
func Damaged(err error) error {
	if k := fault.KindOf(err); k != fault.Internal {
		return err
	}
	return fault.New(fault.Invalid, "the archive is damaged or truncated").Because(err)
}

// meter counts what is read, and ends when the context does.
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

// bounded refuses a stream that is too long, or too long for what it was packed in.
type bounded struct {
	r    io.Reader
	in   *meter // nil: not compressed
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

// Fits refuses the name of an entry that is longer than any path the kernel accepts, with
// TooLarge. Every importer calls it first: the cost of a name grows with its depth.
func Fits(name string) error {
	if len(name) <= limit.ArchiveName {
		return nil
	}
	return fault.New(fault.TooLarge, "the archive has a name of %d bytes, more than the limit of %d: %.60q...", len(name),
		limit.ArchiveName, name).
		WithHint("list its names: tar -tf ARCHIVE")
}

// Name takes the path of an entry apart into names below the place that the archive
// is unpacked to. ok is false when it would lead out or cannot be; absolute says that
// it was meant from the root.
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

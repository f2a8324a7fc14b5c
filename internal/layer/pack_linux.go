package layer

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Packable returns nil if an OCI image layer can express all entries of a finalized layer, and
// otherwise TooLarge or Unsupported with the first path that it cannot express. Only WriteTar
// finds entries whose header would be too large.
func (s *Store) Packable(ctx context.Context, id timeline.LayerID) error {
	entries, _, err := s.Manifest(ctx, id)
	if err != nil {
		return err
	}
	return packable(id, entries)
}

func packable(id timeline.LayerID, entries []format.Entry) error {
	if i := slices.IndexFunc(entries, isSparse); i >= 0 {
		return fault.New(fault.TooLarge,
			"cannot write layer %s as tar: the holes of its files exceed %d bytes, which tar writes as zeros; %q "+
				"is one of them",
			id, int64(limit.ManifestHoles), "/"+entries[i].Path).
			WithHint("remove the sparse files in the sandbox, then take a snapshot: coppice snapshot create")
	}
	if no, ok := errors.AsType[*format.NoHeader](format.Expressible(entries)); ok {
		return fault.New(fault.Unsupported,
			"cannot write layer %s as an OCI layer: the name of %q is reserved for whiteouts",
			id, "/"+no.Path).
			WithHint("rename it in a new sandbox, or push without layers: coppice git push SANDBOX").Because(no)
	}
	return nil
}

// WriteTar writes a finalized layer as an uncompressed OCI image layer. It writes nothing if the layer is not
// Packable.
func (s *Store) WriteTar(ctx context.Context, id timeline.LayerID, w io.Writer) error {
	entries, _, err := s.Manifest(ctx, id)
	if err != nil {
		return err
	}
	if err := packable(id, entries); err != nil {
		return err
	}
	err = s.writeTar(ctx, id, entries, w)
	if no, ok := errors.AsType[*format.NoHeader](err); ok {
		return fault.New(fault.TooLarge,
			"cannot write layer %s as tar: the attributes, path or device number of %q do not fit",
			id, "/"+no.Path).
			WithHint("remove it in the sandbox, then take a snapshot: coppice snapshot create").Because(err)
	}
	return fault.Wrap(err, "write layer %s", id)
}

func isSparse(e format.Entry) bool { return e.Sparse }

func (s *Store) writeTar(ctx context.Context, id timeline.LayerID, entries []format.Entry, w io.Writer) error {
	root, err := dirfd.OpenDir(unix.AT_FDCWD, s.Dir(id))
	if err != nil {
		return err
	}
	defer unix.Close(root)
	return format.WriteTar(ctx, w, entries, func(e *format.Entry) (io.ReadCloser, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		fd, err := dirfd.OpenLong(root, e.Path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, dirfd.Beneath)
		if err != nil {
			return nil, err
		}
		return &untilDone{ctx: ctx, file: os.NewFile(uintptr(fd), e.Path)}, nil
	})
}

// untilDone is a file that cannot be read after ctx is canceled.
type untilDone struct {
	file *os.File
	ctx  context.Context // of one call of writeTar
}

// Read implements io.Reader.
func (u *untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.file.Read(p)
}

// Close implements io.Closer.
func (u *untilDone) Close() error { return u.file.Close() }

func (s *Store) diffID(ctx context.Context, id timeline.LayerID, entries []format.Entry) (string, error) {
	h := sha256.New()
	if err := s.writeTar(ctx, id, entries, h); err != nil {
		return "", err
	}
	return format.Digest(h.Sum(nil)), nil
}

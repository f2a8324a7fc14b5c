package memory

import (
	"context"
	"crypto/sha256"
	"errors"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// imageFiles are all files of an image.
var imageFiles = []string{kernelName, metaName, pagesName}

// Checkout returns a directory with the files of an image, complete and verified, which must only be read. It exists
// until release is called, which may be called more than once. Files that are open and locked with flock(2) stay as
// they are beyond that, and beyond the life of this process. Several callers may hold one image. An image that was
// added or checked out recently is returned immediately; others are assembled, on all processors.
//
// Checkout returns NotFound if the image does not exist, Corrupt if the stored data is damaged, and NoSpace if the
// disk is full.
func (s *Store) Checkout(ctx context.Context, id ID) (dir string, release func(), err error) {
	e, err := s.hold(id)
	if err != nil {
		return "", nil, err
	}
	if err := s.present(ctx, id, e); err != nil {
		s.letGo(e)
		return "", nil, fault.Wrap(err, "check out memory image %s", id)
	}
	return filepath.Join(s.dir, cacheDir, string(id)), sync.OnceFunc(func() { s.letGo(e) }), nil
}

// hold prevents an image, and its files in the cache, from being removed.
func (s *Store) hold(id ID) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[id]
	if e == nil {
		return nil, missing(id)
	}
	if e.err != nil {
		return nil, e.err
	}
	e.held++
	s.tick++
	e.used = s.tick
	return e, nil
}

// letGo reverts hold.
func (s *Store) letGo(e *entry) {
	s.mu.Lock()
	e.held--
	s.mu.Unlock()
	s.evict(s.options.CacheBytes)
}

// present makes sure that the files of an image are in the cache and right.
func (s *Store) present(ctx context.Context, id ID, e *entry) error {
	if err := e.busy.take(ctx); err != nil {
		return err
	}
	defer e.busy.free()
	there, err := s.stillRight(ctx, id)
	if there {
		s.account(id, e)
		return nil
	}
	if err != nil {
		return err
	}
	m, err := s.manifest(id)
	if err != nil {
		return err
	}
	if err := s.uncache(id); err != nil {
		return err
	}
	_, zero := m.pages()
	need := e.image.Size - zero*pageSize
	s.makeRoom(need)
	if err := s.assemble(ctx, id, m); err != nil {
		return s.noRoom(err, need)
	}
	s.account(id, e)
	s.evict(s.options.CacheBytes)
	return nil
}

// stillRight reports whether the cached copy of an image exists and is right. It hashes the copy unless it is known
// to be right. A wrong copy is not an error, unless it is the stored pages themselves.
func (s *Store) stillRight(ctx context.Context, id ID) (bool, error) {
	dir, err := dirfd.OpenDir(s.cache, string(id))
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(dir)
	if s.isChecked(dir, imageFiles...) {
		return true, nil
	}
	m, err := s.manifest(id)
	if err != nil {
		return false, err
	}
	err = s.compare(ctx, dir, id, m)
	if err == nil {
		_ = s.setChecked(dir, imageFiles...) // otherwise it is hashed again
		return true, nil
	}
	if transient(err) {
		return false, err
	}
	if st, e := dirfd.Lstat(dir, pagesName); e == nil && st.Nlink > 1 && errors.Is(err, errPages) {
		return false, err
	}
	return false, nil
}

// errPages says that the pages are wrong, and no other file.
var errPages = errors.New("page mismatch in the image")

// compare hashes the files in a directory and compares them with the manifest.
func (s *Store) compare(ctx context.Context, dir int, id ID, m *manifest) error {
	for i, name := range smallNames {
		b, err := readAt(dir, name, m.small[i].size)
		if err != nil {
			return err
		}
		if digest(sha256.Sum256(b)) != m.small[i].sum {
			return corrupt("%s/%s/%s does not match its digest", cacheDir, id, name)
		}
	}
	want, err := s.digests(m)
	if err != nil {
		return err
	}
	got, err := hashPages(ctx, dir, cacheDir+"/"+string(id), len(want), runtime.GOMAXPROCS(0))
	if err != nil {
		return err
	}
	for i := range want {
		if got[i] != want[i] {
			return corrupt("page %d (at byte %d) of %s/%s/%s does not match its digest", i, i*pageSize, cacheDir, id, pagesName).
				Because(errPages)
		}
	}
	return nil
}

// hashPages hashes the pages in a directory. at names the directory in errors.
func hashPages(ctx context.Context, dir int, at string, want, workers int) ([]digest, error) {
	fd, st, err := dirfd.OpenRegular(dir, pagesName)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if st.Size != int64(want)*pageSize {
		return nil, corrupt("%s/%s has %d bytes, expected %d", at, pagesName, st.Size, int64(want)*pageSize).
			Because(errPages)
	}
	return hashFile(ctx, fd, want, workers)
}

// digests returns the digests of an image's pages, from the indexes of its packs.
func (s *Store) digests(m *manifest) ([]digest, error) {
	indexes := make([][]digest, len(m.packs))
	for i, id := range m.packs {
		var err error
		if indexes[i], err = s.index(id); err != nil {
			return nil, err
		}
	}
	all, _ := m.pages()
	out := make([]digest, 0, all)
	for _, r := range m.runs {
		switch {
		case r.pack == 0:
			out = append(out, make([]digest, r.count)...)
		case int(r.first)+int(r.count) > len(indexes[r.pack-1]):
			return nil, beyond(m.packs[r.pack-1])
		default:
			out = append(out, indexes[r.pack-1][r.first:r.first+r.count]...)
		}
	}
	return out, nil
}

func beyond(id digest) error {
	return corrupt("a memory image refers to pages that %s/%s does not have", packsDir, id)
}

// manifest reads the manifest of an image, which must match its ID.
func (s *Store) manifest(id ID) (*manifest, error) {
	b, err := readAt(s.images, string(id), maxStored)
	if transient(err) {
		return nil, err
	}
	if err != nil || digest(sha256.Sum256(b)).String() != string(id) {
		return nil, corrupt("%s/%s does not match its digest", imagesDir, id).Because(err)
	}
	return decodeManifest(b)
}

package memory

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// account records how much of the cache the files of an image use, unless that is known. The caller holds busy.
func (s *Store) account(id ID, e *entry) {
	s.mu.Lock()
	known := e.bytes > 0
	s.mu.Unlock()
	if known {
		return
	}
	n := usage(s.cache, string(id), false)
	s.mu.Lock()
	e.bytes = n
	s.mu.Unlock()
}

// makeRoom drops cached files if the disk has less than need bytes free.
func (s *Store) makeRoom(need int64) {
	const spare = 16 << 20 // for the file system itself
	if free, ok := s.free(); ok && free < need+spare {
		s.evict(0)
	}
}

// free returns how many bytes of the disk can be used.
func (s *Store) free() (int64, bool) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(s.top, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * st.Bsize, true
}

// noRoom adds the required space to err, if err says that the disk is full.
func (s *Store) noRoom(err error, need int64) error {
	if !fault.Is(err, fault.NoSpace) {
		return err
	}
	free := "an unknown amount"
	if n, ok := s.free(); ok {
		free = mebibytes(n)
	}
	return fault.New(fault.NoSpace, "no space for %s in %s: %s is free", mebibytes(need), s.dir, free).
		WithHint("free space there, or remove snapshots: coppice system gc").Because(err)
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// evict drops cached files until they use at most limit, least recently used first. Files of held images are not
// dropped.
func (s *Store) evict(limit int64) {
	for {
		id, e := s.victim(limit)
		if e == nil {
			return
		}
		_ = s.uncache(id) // a file that was not dropped is counted again when it is used
		e.busy.free()
	}
}

// victim returns the image whose cached files are dropped next, with its busy lock taken, or nil.
func (s *Store) victim(limit int64) (ID, *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", nil
	}
	var total int64
	var id ID
	var oldest *entry
	for i, e := range s.entries {
		total += e.bytes
		if e.bytes > 0 && e.held == 0 && (oldest == nil || e.used < oldest.used) && len(e.busy) == 0 {
			id, oldest = i, e
		}
	}
	if total <= limit || oldest == nil || !oldest.busy.try() {
		return "", nil
	}
	oldest.bytes = 0
	return id, oldest
}

// uncache drops the files of an image from the cache, if they are there. The caller holds busy, or is the only one
// that knows the image.
func (s *Store) uncache(id ID) error {
	pages, err := dirfd.OpenDir(s.cache, string(id))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	st, statErr := dirfd.Lstat(pages, pagesName)
	unix.Close(pages)
	name := scratch("rm")
	if err := s.fs.Rename(s.cache, string(id), s.tmp, name); err != nil {
		return err
	}
	drop := func() error { return remove(s.fs, s.tmp, name) }
	if statErr != nil || st.Nlink == 1 {
		return drop()
	}
	// Dropping the name changes the times of the pack's file.
	m, err := s.manifest(id)
	if err != nil || len(m.packs) != 1 {
		return drop()
	}
	dir, err := dirfd.OpenDir(s.packs, m.packs[0].String())
	if err != nil {
		return drop()
	}
	defer unix.Close(dir)
	return s.keepChecked(dir, pagesName, drop)
}

// Verify hashes everything that is stored of an image again, its programs, and its cached copy. At the first difference
// it returns Corrupt with its location. A cached copy that differs is removed, since the image is intact without it.
func (s *Store) Verify(ctx context.Context, id ID) error {
	e, err := s.hold(id)
	if err != nil {
		return err
	}
	defer s.letGo(e)
	m, err := s.manifest(id)
	if err != nil {
		return err
	}
	for _, f := range m.small {
		if _, err := s.small(f); err != nil {
			return err
		}
	}
	for _, fact := range []string{InitFact, ClientFact} {
		if _, err := s.program(ctx, m.facts, fact, true); err != nil {
			return err
		}
	}
	none := func([]byte, int64) error { return nil }
	if err := s.eachPart(ctx, m, true, addWorkers, none); err != nil {
		return err
	}
	return s.verifyCached(ctx, id, e, m)
}

func (s *Store) verifyCached(ctx context.Context, id ID, e *entry, m *manifest) error {
	if err := e.busy.take(ctx); err != nil {
		return err
	}
	defer e.busy.free()
	dir, err := dirfd.OpenDir(s.cache, string(id))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	err = s.compare(ctx, dir, id, m)
	if err == nil || transient(err) {
		return err
	}
	err = corrupt("the cached copy of memory image %s was damaged and has been removed; the image itself is intact", id).
		WithHint("sandboxes restored from it may be damaged: restore them again").Because(err)
	return errors.Join(err, s.uncache(id))
}

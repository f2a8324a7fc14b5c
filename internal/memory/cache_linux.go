package memory

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// account notes what the files of an image take of the cache. The caller holds
// busy.
func (s *Store) account(id ID, e *entry) {
	n := usage(s.cache, string(id), false)
	s.mu.Lock()
	e.bytes = n
	s.mu.Unlock()
}

// evict drops cached files until they are within their limit, those first that
// were not used for longest. Those that are held stay.
func (s *Store) evict() {
	for {
		id, e := s.victim()
		if e == nil {
			return
		}
		_ = s.uncache(id) // swept when the store is opened
		e.busy.free()
	}
}

// victim takes the image whose cached files are to go next, with its busy, or nil.
func (s *Store) victim() (ID, *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var total int64
	var id ID
	var oldest *entry
	for i, e := range s.entries {
		total += e.bytes
		if e.bytes > 0 && e.held == 0 && (oldest == nil || e.used < oldest.used) && len(e.busy) == 0 {
			id, oldest = i, e
		}
	}
	if total <= s.options.CacheBytes || oldest == nil || !oldest.busy.try() {
		return "", nil
	}
	oldest.bytes = 0
	return id, oldest
}

// uncache drops the files of an image from the cache, if they are there. The
// caller holds busy, or nobody else knows the image.
func (s *Store) uncache(id ID) error {
	pages, err := openDirAt(s.cache, string(id))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	st, statErr := lstatAt(pages, pagesName)
	unix.Close(pages)
	name := scratch("rm")
	if err := s.fs.Rename(s.cache, string(id), s.tmp, name); err != nil {
		return err
	}
	drop := func() error { return remove(s.fs, s.tmp, name) }
	if statErr != nil || st.Nlink == 1 {
		return drop()
	}
	// The pack loses a name, and with it its times.
	m, err := s.manifest(id)
	if err != nil || len(m.packs) != 1 {
		return drop()
	}
	dir, err := openDirAt(s.packs, m.packs[0].String())
	if err != nil {
		return drop()
	}
	defer unix.Close(dir)
	return s.keepChecked(dir, pagesName, drop)
}

// Verify hashes everything that is stored of an image again, and its cached copy.
// The first difference is fault.Corrupt and says where it is; a cached copy that
// differs is dropped, and the image is whole without it.
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
	dir, err := openDirAt(s.cache, string(id))
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
	err = corrupt("the assembled copy of memory image %s was damaged and is dropped; the image itself is whole", id).
		WithHint("what was restored from it since cannot be trusted: restore it again").Because(err)
	return errors.Join(err, s.uncache(id))
}

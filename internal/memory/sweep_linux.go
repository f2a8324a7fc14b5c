package memory

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Sweep removes the images for which keep returns false and that are not held, and frees what only they used: packs,
// pages of packs that others use, small files, inits. It returns how many bytes of disk space that freed. keep is
// called for each image, from this goroutine. The caller must not call Sweep between Add and the record that makes
// keep return true for the image.
//
// While a kept image is damaged, it is unknown what it uses. Then only images are removed, and the error is Corrupt.
func (s *Store) Sweep(ctx context.Context, keep func(id ID) bool) (freed int64, err error) {
	if err := s.writing.take(ctx); err != nil {
		return 0, fault.Wrap(err, "sweep the memory store")
	}
	defer s.writing.free()
	for _, id := range s.ids() {
		if keep(id) {
			continue
		}
		n, err := s.drop(ctx, id)
		freed += n
		if err != nil {
			return freed, fault.Wrap(err, "remove memory image %s", id)
		}
	}
	// Dropped images must stay dropped after a power loss before their pages are removed.
	if err := s.fs.Sync(s.images); err != nil {
		return freed, fault.Wrap(err, "sweep the memory store")
	}
	n, err := s.collect(ctx)
	return freed + n, fault.Wrap(err, "sweep the memory store")
}

func (s *Store) ids() []ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []ID
	for id := range s.entries {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// drop removes an image, unless it is held.
func (s *Store) drop(ctx context.Context, id ID) (freed int64, err error) {
	s.mu.Lock()
	e := s.entries[id]
	if e.held > 0 {
		s.mu.Unlock()
		return 0, nil
	}
	delete(s.entries, id) // from here on, the image cannot be found
	s.mu.Unlock()
	putBack := func() {
		s.mu.Lock()
		s.entries[id] = e
		s.mu.Unlock()
	}
	if err := e.busy.take(ctx); err != nil { // another caller drops its files
		putBack()
		return 0, err
	}
	defer e.busy.free()
	cached := usage(s.cache, string(id), false)
	if err := s.uncache(id); err != nil {
		putBack()
		return 0, err
	}
	own := usage(s.images, string(id), true)
	if err := s.fs.Unlink(s.images, string(id)); err != nil && !errors.Is(err, unix.ENOENT) {
		putBack()
		return cached, err
	}
	return cached + own, nil
}

// load finds the stored images, and removes incomplete data.
func (s *Store) load(ctx context.Context) error {
	left, err := dirfd.Names(s.tmp)
	if err != nil {
		return err
	}
	for _, name := range left {
		if err := remove(s.fs, s.tmp, name); err != nil {
			return err
		}
	}
	if _, err := s.collect(ctx); err != nil && !fault.Is(err, fault.Corrupt) && !fault.Is(err, fault.Version) {
		return err
	}
	return s.loadCache()
}

// loadCache finds the cached files of existing images, and removes the rest.
func (s *Store) loadCache() error {
	cached, err := dirfd.Names(s.cache)
	if err != nil {
		return err
	}
	for _, name := range cached {
		st, err := dirfd.Lstat(s.cache, name)
		if err != nil {
			return err
		}
		if e := s.entries[ID(name)]; e != nil {
			e.bytes = usage(s.cache, name, false)
			e.used = uint64(max(st.Mtim.Nano(), 0))
			s.tick = max(s.tick, e.used)
			continue
		}
		if err := remove(s.fs, s.cache, name); err != nil {
			return err
		}
	}
	s.evict(s.options.CacheBytes)
	return nil
}

// uses is what images use.
type uses struct {
	packs map[digest]*pack // nil: the index cannot be read
	blobs map[digest]bool
	inits map[digest]bool
	err   error // of an image whose uses are unknown
}

// collect finds what the images use, and removes the rest. The caller holds writing.
func (s *Store) collect(ctx context.Context) (freed int64, err error) {
	u, err := s.used(ctx)
	if err != nil {
		return 0, err
	}
	s.live = map[digest]*pack{}
	for id, p := range u.packs {
		if p != nil {
			s.live[id] = p
		}
	}
	if u.err != nil {
		return 0, u.err
	}
	unused := func(name string) bool {
		id, ok := parseID(name)
		_, is := u.packs[id]
		return ok && !is
	}
	if freed, err = s.dropAll(ctx, s.packs, unused); err != nil {
		return freed, err
	}
	n, err := s.dropAll(ctx, s.blobs, func(name string) bool {
		sum, ok := parseID(name)
		return ok && !u.blobs[sum]
	})
	if freed += n; err != nil {
		return freed, err
	}
	n, err = s.dropAll(ctx, s.inits, func(name string) bool {
		sum, ok := parseID(name)
		return ok && !u.inits[sum] && s.unusedInit(name)
	})
	if freed += n; err != nil {
		return freed, err
	}
	for id, p := range s.live {
		n, err := s.trim(ctx, id, p)
		if freed += n; err != nil {
			return freed, err
		}
	}
	return freed, nil
}

// dropAll removes unused entries of a directory. A pack is first renamed, so that it is never found without one of
// its files.
func (s *Store) dropAll(ctx context.Context, dir int, unused func(name string) bool) (freed int64, err error) {
	all, err := dirfd.Names(dir)
	if err != nil {
		return 0, err
	}
	for _, name := range all {
		if !unused(name) {
			continue
		}
		if err := context.Cause(ctx); err != nil {
			return freed, err
		}
		n := usage(dir, name, true)
		trash := scratch("rm")
		if err := s.fs.Rename(dir, name, s.tmp, trash); err != nil {
			return freed, err
		}
		if err := remove(s.fs, s.tmp, trash); err != nil {
			return freed, err
		}
		freed += n
	}
	return freed, nil
}

// trim punches out the pages of a pack that no image uses.
func (s *Store) trim(ctx context.Context, id digest, p *pack) (freed int64, err error) {
	dir, err := dirfd.OpenDir(s.packs, id.String())
	if err != nil {
		return 0, err
	}
	defer unix.Close(dir)
	before, err := dirfd.Lstat(dir, pagesName)
	if errors.Is(err, unix.ENOENT) || onDisk(&before) <= int64(p.live.count())*pageSize {
		return 0, nil // images that use it report the loss
	}
	err = s.keepChecked(dir, pagesName, func() error { return s.punch(ctx, dir, p.live, p.head.pages) })
	if err != nil {
		return 0, err
	}
	after, err := dirfd.Lstat(dir, pagesName)
	return onDisk(&before) - onDisk(&after), err
}

// used reads all manifests, adds entries for unknown images, and returns what the images use.
func (s *Store) used(ctx context.Context) (uses, error) {
	u := uses{packs: map[digest]*pack{}, blobs: map[digest]bool{}, inits: map[digest]bool{}}
	all, err := dirfd.Names(s.images)
	if err != nil {
		return u, err
	}
	for _, name := range all {
		if err := context.Cause(ctx); err != nil {
			return u, err
		}
		if _, ok := parseID(name); !ok {
			continue // not a file of the store
		}
		m, err := s.manifest(ID(name))
		if err == nil {
			err = s.use(&u, m)
		}
		if transient(err) {
			return u, err
		}
		if err != nil {
			u.err = err
		}
		s.know(ID(name), m, err)
	}
	return u, nil
}

// know adds an entry for an image, with its error, unless it has one.
func (s *Store) know(id ID, m *manifest, wrong error) {
	img := Image{ID: id}
	if wrong == nil {
		img = m.image(id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[id]; e != nil {
		e.err = wrong
		return
	}
	s.entries[id] = &entry{image: img, err: wrong, busy: newLock()}
}

// use adds what an image uses. A missing or damaged pack is reported when it is read.
func (s *Store) use(u *uses, m *manifest) error {
	for _, f := range m.small {
		u.blobs[f.sum] = true
	}
	for _, fact := range []string{InitFact, ClientFact} {
		if sum, ok := parseID(m.facts[fact]); ok {
			u.inits[sum] = true
		}
	}
	for _, id := range m.packs {
		if _, ok := u.packs[id]; ok {
			continue
		}
		h, err := s.header(id)
		if transient(err) {
			return err
		}
		u.packs[id] = nil
		if err == nil {
			u.packs[id] = &pack{head: h, live: newPageSet(h.pages)}
		}
	}
	for _, r := range m.runs {
		if r.pack == 0 {
			continue
		}
		id := m.packs[r.pack-1]
		p := u.packs[id]
		if p == nil {
			continue
		}
		if r.first+r.count > p.head.pages {
			return beyond(id)
		}
		p.live.add(r.first, r.count)
	}
	return nil
}

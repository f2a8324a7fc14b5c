package memory

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/undo"
)

// addWorkers is how many processors Add may use; the sandbox continues to run meanwhile.
const addWorkers = 2

// Add stores the image in a directory, which must be on the store's file system, and returns it when it is durable.
// The store owns the directory from the call on, and moves its files. If Add fails, the directory is removed, unless
// it could not be moved. The next Sweep removes the image unless its keep function keeps it.
//
// The programs of the image are stored with it, and the facts of the result name them.
//
// Add returns Invalid if the directory does not contain the files of an image, and NoSpace if the disk is full.
func (s *Store) Add(ctx context.Context, dir string, facts Facts, programs Programs) (_ Image, err error) {
	in, err := s.takeIn(dir)
	if err != nil {
		return Image{}, fault.Wrap(err, "store the memory image in %s", dir)
	}
	defer func() {
		unix.Close(in.fd)
		_ = remove(s.fs, s.tmp, in.name) // swept when the store is opened
	}()
	if err := s.writing.take(ctx); err != nil {
		return Image{}, fault.Wrap(err, "store a memory image")
	}
	defer s.writing.free()
	a := adding{s: s, in: in, programs: programs, pages: -1, m: manifest{facts: facts}}
	defer a.close()
	img, err := a.run(ctx)
	if err != nil {
		return Image{}, fault.Wrap(s.noRoom(err, a.need), "store a memory image")
	}
	return img, nil
}

// adding is one Add in progress.
type adding struct {
	s        *Store
	in       intake
	programs Programs
	pages    int // the file of pages, open
	digests  []digest
	need     int64 // bytes to write, as far as known

	m     manifest
	added int64
	id    digest // of the new pack
	made  *pack  // the new pack, or nil
}

func (a *adding) close() {
	if a.pages >= 0 {
		unix.Close(a.pages)
	}
}

func (a *adding) run(ctx context.Context) (_ Image, err error) {
	var u undo.Stack
	defer u.Run(&err)
	if err := a.in.check(); err != nil {
		return Image{}, err
	}
	if err := a.read(ctx); err != nil {
		return Image{}, err
	}
	l, err := a.s.layOut(ctx, a.digests)
	if err != nil {
		return Image{}, err
	}
	if err := a.putPack(ctx, l, &u); err != nil {
		return Image{}, err
	}
	if err := a.putSmalls(ctx, &u); err != nil {
		return Image{}, err
	}
	if err := a.putPrograms(ctx, &u); err != nil {
		return Image{}, err
	}
	id, isNew, err := a.putManifest(ctx, &u)
	if err != nil {
		return Image{}, err
	}
	u.Release()
	return a.announce(id, isNew), nil
}

// read hashes the pages, and makes holes of pages of zeros.
func (a *adding) read(ctx context.Context) (err error) {
	s := a.s
	var size int64
	for _, name := range imageFiles {
		if st, err := dirfd.Lstat(a.in.fd, name); err == nil {
			a.need += st.Size
		}
	}
	if a.pages, size, err = s.own(ctx, a.in, pagesName, maxPages*pageSize); err != nil {
		return err
	}
	if size%pageSize != 0 {
		return fault.New(fault.Invalid, "invalid size of %s: %d bytes are not whole pages", pagesName, size)
	}
	if a.digests, err = hashFile(ctx, a.pages, int(size/pageSize), addWorkers); err != nil {
		return fault.Wrap(err, "read %s", pagesName)
	}
	return a.punchZeros(ctx)
}

// punchZeros frees the disk space of pages of zeros.
func (a *adding) punchZeros(ctx context.Context) error {
	filled := newPageSet(uint32(len(a.digests)))
	for i, d := range a.digests {
		if d != (digest{}) {
			filled.add(uint32(i), 1)
		}
	}
	return a.s.punch(ctx, a.in.fd, filled, uint32(len(a.digests)))
}

// putSmalls stores the small files.
func (a *adding) putSmalls(ctx context.Context, u *undo.Stack) error {
	for i, name := range smallNames {
		fd, size, err := a.s.own(ctx, a.in, name, maxSmall)
		if err != nil {
			return err
		}
		b := make([]byte, size)
		err = readFull(fd, b, 0)
		unix.Close(fd)
		if err != nil {
			return fault.Wrap(err, "read %s", name)
		}
		f, added, isNew, err := a.s.putSmall(b)
		if isNew {
			u.Push(func() error { return remove(a.s.fs, a.s.blobs, f.sum.String()) })
		}
		if err != nil {
			return err
		}
		a.m.small[i] = f
		a.added += added
	}
	return a.s.fs.Sync(a.s.blobs)
}

// putManifest makes the image visible and durable, as the last step.
func (a *adding) putManifest(ctx context.Context, u *undo.Stack) (_ ID, isNew bool, err error) {
	s := a.s
	b, id, err := a.m.encode()
	if err != nil {
		return "", false, err
	}
	if _, err := s.Stat(id); err == nil {
		return id, false, nil
	}
	if err := context.Cause(ctx); err != nil {
		return "", false, err
	}
	name := scratch("image")
	if err := s.write(s.tmp, name, b, true); err != nil {
		return "", false, err
	}
	if err := s.fs.Rename(s.tmp, name, s.images, string(id)); err != nil {
		_ = s.fs.Unlink(s.tmp, name) // swept when the store is opened
		return "", false, err
	}
	u.Push(func() error { return s.fs.Unlink(s.images, string(id)) })
	if err := s.fs.Sync(s.images); err != nil {
		return "", false, err
	}
	return id, true, nil
}

// announce makes the image, which is durable now, known, and makes the files of gVisor its cached copy. If the latter
// fails, the image is assembled when it is needed.
func (a *adding) announce(id ID, isNew bool) Image {
	s := a.s
	img := a.m.image(id)
	a.count()
	if !isNew {
		return img
	}
	e := &entry{image: img, busy: newLock()}
	if s.fs.Rename(s.tmp, a.in.name, s.cache, string(id)) == nil {
		_ = s.setChecked(a.in.fd, kernelName, metaName, pagesName) // otherwise it is hashed again
		e.bytes = usage(s.cache, string(id), false)
	}
	img.AddedBytes = a.added
	if a.made != nil {
		if dir, err := dirfd.OpenDir(s.packs, a.id.String()); err == nil {
			_ = s.setChecked(dir, pagesName) // otherwise it is hashed again
			unix.Close(dir)
		}
		img.AddedBytes += usage(s.packs, a.id.String(), true)
	}
	img.AddedBytes += usage(s.images, string(id), true)
	s.mu.Lock()
	s.tick++
	e.used = s.tick
	s.entries[id] = e
	s.mu.Unlock()
	s.evict(s.options.CacheBytes)
	return img
}

// count updates which pages are used.
func (a *adding) count() {
	if a.made != nil {
		a.s.live[a.id] = a.made
	}
	for _, r := range a.m.runs {
		if r.pack > 0 {
			a.s.live[a.m.packs[r.pack-1]].live.add(r.first, r.count)
		}
	}
}

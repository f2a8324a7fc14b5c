package memory

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/undo"
	"github.com/coppice-dev/coppice/internal/vfs"
)

const indexName = "index"

// index reads the digests of a pack's pages.
func (s *Store) index(id digest) ([]digest, error) {
	dir, err := dirfd.OpenDir(s.packs, id.String())
	if err == nil {
		defer unix.Close(dir)
		var b []byte
		if b, err = readAt(dir, indexName, int64(indexHeader+maxPages*len(id))); err == nil {
			var out []digest
			if out, err = decodeIndex(b, id); err == nil {
				return out, nil
			}
		}
	}
	if transient(err) {
		return nil, err
	}
	return nil, corrupt("%s/%s/%s does not match its digest", packsDir, id, indexName).Because(err)
}

// header reads the beginning of a pack's index.
func (s *Store) header(id digest) (header, error) {
	dir, err := dirfd.OpenDir(s.packs, id.String())
	if err != nil {
		return header{}, err
	}
	defer unix.Close(dir)
	fd, _, err := dirfd.OpenRegular(dir, indexName)
	if err != nil {
		return header{}, err
	}
	defer unix.Close(fd)
	b := make([]byte, indexHeader)
	if err := readFull(fd, b, 0); err != nil {
		return header{}, err
	}
	return decodeHeader(b)
}

// layOut plans how an image is stored. It uses a stored page only if the page was hashed since the machine was
// started, since a damaged page would damage the new image as well. The caller holds writing.
func (s *Store) layOut(ctx context.Context, pages []digest) (layout, error) {
	bad := map[digest]bool{}
	for {
		sources, err := s.sources(ctx, bad)
		if err != nil {
			return layout{}, err
		}
		l := plan(pages, sources)
		found := len(bad)
		for _, id := range l.packs {
			if id == (digest{}) {
				continue
			}
			if err := s.checkPack(ctx, id); err != nil {
				if transient(err) {
					return layout{}, err
				}
				bad[id] = true
			}
		}
		if len(bad) == found {
			return l, nil
		}
	}
}

// sources returns the newest packs that are not bad, up to LookupPages pages.
func (s *Store) sources(ctx context.Context, bad map[digest]bool) ([]source, error) {
	ids := slices.SortedFunc(maps.Keys(s.live), func(a, b digest) int {
		return cmp.Or(cmp.Compare(s.live[b].head.made, s.live[a].head.made), slices.Compare(a[:], b[:]))
	})
	var out []source
	room := s.options.LookupPages
	for _, id := range ids {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if room <= 0 {
			break
		}
		if bad[id] {
			continue
		}
		digests, err := s.index(id)
		if transient(err) {
			return nil, err
		}
		if err != nil {
			bad[id] = true // images that use it report the damage
			continue
		}
		digests = digests[:min(len(digests), room)]
		room -= len(digests)
		out = append(out, source{id: id, digests: digests, live: s.live[id].live})
	}
	return out, nil
}

// checkPack returns an error unless the used pages of a pack are what was stored. The caller holds writing.
func (s *Store) checkPack(ctx context.Context, id digest) error {
	dir, err := dirfd.OpenDir(s.packs, id.String())
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if s.isChecked(dir, pagesName) {
		return nil
	}
	want, err := s.index(id)
	if err != nil {
		return err
	}
	got, err := hashPages(ctx, dir, packsDir+"/"+id.String(), len(want), addWorkers)
	if err != nil {
		return err
	}
	live := s.live[id].live
	for i := range want {
		if got[i] != want[i] && live.has(uint32(i)) {
			return wrongPage(id, uint32(i))
		}
	}
	_ = s.setChecked(dir, pagesName) // otherwise it is hashed again
	return nil
}

// wrongPage returns the error of a damaged page of a pack.
func wrongPage(id digest, page uint32) *fault.Error {
	return corrupt("page %d (at byte %d) of %s/%s/%s does not match its digest", page, int64(page)*pageSize, packsDir,
		id, pagesName)
}

// putPack makes the pack of the new pages of the image, if there are any, and adds the runs to the manifest.
func (a *adding) putPack(ctx context.Context, l layout, u *undo.Stack) error {
	a.m.packs, a.m.runs = l.packs, l.runs
	a.need -= int64(len(a.digests)) * pageSize // the file exists, or is not needed
	k := slices.Index(l.packs, digest{})
	if k < 0 {
		return nil
	}
	digests := a.digests
	if !l.identity {
		digests = make([]digest, len(l.fresh))
		for i, at := range l.fresh {
			digests[i] = a.digests[at]
		}
		a.need += int64(len(l.fresh)) * pageSize
	}
	a.need += int64(len(digests) * len(digest{}))
	a.s.makeRoom(a.need)
	h := header{made: time.Now().UnixNano(), pages: uint32(len(digests))}
	_, _ = rand.Read(h.nonce[:]) // never fails: the program exits instead
	b, id := encodeIndex(h, digests)
	a.id, a.m.packs[k] = id, id
	a.made = &pack{head: h, live: newPageSet(h.pages)}
	return a.buildPack(ctx, l, b, u)
}

// buildPack makes the directory of the new pack in tmp, flushed, and then makes it visible.
func (a *adding) buildPack(ctx context.Context, l layout, index []byte, u *undo.Stack) error {
	s := a.s
	name := scratch("pack")
	if err := s.fs.Mkdir(s.tmp, name, 0o700); err != nil {
		return err
	}
	u.Push(func() error { return remove(s.fs, s.tmp, name) })
	dir, err := dirfd.OpenDir(s.tmp, name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if l.identity {
		err = a.linkPages(dir)
	} else {
		err = a.writePages(ctx, dir, l.fresh)
	}
	if err != nil {
		return err
	}
	if err := s.write(dir, indexName, index, true); err != nil {
		return err
	}
	if err := s.fs.Sync(dir); err != nil {
		return err
	}
	if err := s.fs.Rename(s.tmp, name, s.packs, a.id.String()); err != nil {
		return err
	}
	u.Push(func() error { return s.fs.Rename(s.packs, a.id.String(), s.tmp, name) })
	return s.fs.Sync(s.packs)
}

// linkPages makes the file that gVisor wrote the file of the pack, flushed. It is the cached copy of the image as
// well.
func (a *adding) linkPages(dir int) error {
	if err := a.s.fs.Sync(a.pages); err != nil {
		return err
	}
	return a.s.fs.Link(a.in.fd, pagesName, dir, pagesName)
}

// writePages writes the new pages to a new file, flushed.
func (a *adding) writePages(ctx context.Context, dir int, fresh []uint32) error {
	fd, err := a.s.fs.Create(dir, pagesName, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = spread(ctx, (len(fresh)+chunk-1)/chunk, addWorkers, func(buf []byte, i int) error {
		part := fresh[i*chunk : min((i+1)*chunk, len(fresh))]
		for k := 0; k < len(part); {
			n := k + 1
			for n < len(part) && part[n] == part[n-1]+1 {
				n++
			}
			if err := readFull(a.pages, buf[k*pageSize:n*pageSize], int64(part[k])*pageSize); err != nil {
				return err
			}
			k = n
		}
		return a.s.fs.WriteAt(fd, buf[:len(part)*pageSize], int64(i)*chunk*pageSize)
	})
	if err != nil {
		return err
	}
	return a.s.fs.Sync(fd)
}

// punch frees the disk space of pages that are not in the set, if the file system supports that. A file that a
// process has locked is not changed until the next sweep: a kernel may have resumed from it, even if this store does
// not know that any more.
func (s *Store) punch(ctx context.Context, dir int, keep pageSet, pages uint32) error {
	st, err := dirfd.Lstat(dir, pagesName)
	if err != nil || onDisk(&st) <= int64(keep.count())*pageSize {
		return err
	}
	fd, err := again(func() (int, error) {
		return unix.Openat(dir, pagesName, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil
		}
		return err
	}
	err = keep.runs(pages, false, func(first, n uint32) error {
		if inHole(fd, int(first), int(n)) {
			return nil
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		return s.fs.Punch(fd, int64(first)*pageSize, int64(n)*pageSize)
	})
	if errors.Is(err, vfs.ErrNoPunch) {
		return nil
	}
	return err
}

package memory

import (
	"context"
	"errors"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/undo"
)

// assemble makes the files of an image in the cache. They need not be flushed: after a power loss they are hashed
// before they are used.
func (s *Store) assemble(ctx context.Context, id ID, m *manifest) (err error) {
	var u undo.Stack
	defer u.Run(&err)
	name := scratch("assembled")
	if err := s.fs.Mkdir(s.tmp, name, 0o700); err != nil {
		return err
	}
	u.Push(func() error { return remove(s.fs, s.tmp, name) })
	dir, err := dirfd.OpenDir(s.tmp, name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	for i, one := range smallNames {
		b, err := s.small(m.small[i])
		if err != nil {
			return err
		}
		if err := s.write(dir, one, b, false); err != nil {
			return err
		}
	}
	if err := s.putPages(ctx, dir, id, m); err != nil {
		return err
	}
	if err := s.fs.Rename(s.tmp, name, s.cache, string(id)); err != nil {
		return err
	}
	u.Release()
	_ = s.setChecked(dir, imageFiles...) // otherwise it is hashed again
	return nil
}

// putPages makes the file of an image's pages in a directory.
func (s *Store) putPages(ctx context.Context, dir int, id ID, m *manifest) error {
	whole, err := s.isPack(m)
	switch {
	case err != nil:
		return err
	case whole:
		return s.sharePages(ctx, dir, id, m)
	}
	return s.gatherPages(ctx, dir, m)
}

// isPack reports whether the pages of an image are, byte for byte, the file of a pack.
func (s *Store) isPack(m *manifest) (bool, error) {
	if len(m.packs) != 1 {
		return false, nil
	}
	at := uint32(0)
	for _, r := range m.runs {
		if r.pack > 0 && r.first != at {
			return false, nil
		}
		at += r.count
	}
	index, err := s.index(m.packs[0])
	if err != nil || len(index) != int(at) {
		return false, err
	}
	at = 0
	for _, r := range m.runs {
		for _, d := range index[at : at+r.count] {
			if (d == digest{}) != (r.pack == 0) {
				return false, nil
			}
		}
		at += r.count
	}
	return true, nil
}

// sharePages makes the file of the only pack a file of the image. All its pages belong to the image, so none can be
// punched out while the image exists.
func (s *Store) sharePages(ctx context.Context, dir int, id ID, m *manifest) error {
	from, err := dirfd.OpenDir(s.packs, m.packs[0].String())
	if err != nil {
		return lost(m.packs[0], err)
	}
	defer unix.Close(from)
	known := s.isChecked(from, pagesName)
	if err := s.fs.Link(from, pagesName, dir, pagesName); err != nil {
		return lost(m.packs[0], err)
	}
	if !known {
		if err := s.compare(ctx, dir, id, m); err != nil {
			return err
		}
	}
	_ = s.setChecked(from, pagesName) // otherwise it is hashed again
	return nil
}

// gatherPages writes the pages of an image to a new file.
func (s *Store) gatherPages(ctx context.Context, dir int, m *manifest) error {
	fd, err := s.fs.Create(dir, pagesName, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	all, _ := m.pages()
	if err := s.fs.Truncate(fd, all*pageSize); err != nil {
		return err
	}
	return s.eachPart(ctx, m, false, runtime.GOMAXPROCS(0), func(p []byte, off int64) error {
		return s.fs.WriteAt(fd, p, off)
	})
}

// part is a sequence of adjacent pages of an image that are not zeros.
type part struct {
	at   int64 // the first page, in the image
	runs []run
}

// parts divides an image into parts that fit a buffer.
func (m *manifest) parts() []part {
	var out []part
	at := int64(0)
	room := uint32(0)
	for _, r := range m.runs {
		if r.pack == 0 {
			at += int64(r.count)
			room = 0
			continue
		}
		for r.count > 0 {
			if room == 0 {
				out, room = append(out, part{at: at}), chunk
			}
			one := run{r.pack, r.first, min(room, r.count)}
			last := &out[len(out)-1]
			last.runs = append(last.runs, one)
			r.first, r.count, room, at = r.first+one.count, r.count-one.count, room-one.count, at+int64(one.count)
		}
	}
	return out
}

// stored is an open pack.
type stored struct {
	id    digest
	fd    int
	want  []digest // the digests of its pages; nil if they are known to be right
	pages int64
}

// eachPart reads the pages of an image from its packs and passes them to fn, concurrently and in any order. It hashes
// pages unless they are known to be right; if always is set, it hashes all.
func (s *Store) eachPart(
	ctx context.Context, m *manifest, always bool, workers int, fn func(p []byte, off int64) error,
) error {
	packs := make([]stored, 0, len(m.packs))
	defer func() {
		for _, p := range packs {
			unix.Close(p.fd)
		}
	}()
	for _, id := range m.packs {
		p, err := s.openPack(id, always)
		if err != nil {
			return err
		}
		packs = append(packs, p)
	}
	parts := m.parts()
	return spread(ctx, len(parts), workers, func(buf []byte, i int) error {
		n := 0
		for _, r := range parts[i].runs {
			size := int(r.count) * pageSize
			if err := packs[r.pack-1].read(buf[n:n+size], r.first); err != nil {
				return err
			}
			n += size
		}
		return fn(buf[:n], parts[i].at*pageSize)
	})
}

// openPack opens the pages of a pack. The caller closes them.
func (s *Store) openPack(id digest, always bool) (stored, error) {
	dir, err := dirfd.OpenDir(s.packs, id.String())
	if err != nil {
		return stored{}, lost(id, err)
	}
	defer unix.Close(dir)
	p := stored{id: id}
	if always || !s.isChecked(dir, pagesName) {
		if p.want, err = s.index(id); err != nil {
			return stored{}, err
		}
	}
	var st unix.Stat_t
	if p.fd, st, err = dirfd.OpenRegular(dir, pagesName); err != nil {
		return stored{}, lost(id, err)
	}
	p.pages = st.Size / pageSize
	return p, nil
}

// read fills b with pages, starting at first.
func (p *stored) read(b []byte, first uint32) error {
	n := len(b) / pageSize
	if end := int64(first) + int64(n); end > p.pages || p.want != nil && end > int64(len(p.want)) {
		return beyond(p.id)
	}
	if err := readFull(p.fd, b, int64(first)*pageSize); err != nil {
		return lost(p.id, err)
	}
	for i := range n {
		if p.want != nil && hashPage(b[i*pageSize:(i+1)*pageSize]) != p.want[int(first)+i] {
			return wrongPage(p.id, first+uint32(i))
		}
	}
	return nil
}

// lost returns the error of a pack that cannot be read. An error that the pack did not cause is returned unchanged.
func lost(id digest, err error) error {
	if transient(err) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return err
	}
	return corrupt("cannot read %s/%s/%s", packsDir, id, pagesName).Because(err)
}

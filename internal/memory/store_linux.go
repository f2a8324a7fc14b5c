package memory

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// Options of a store; the zero value works.
type Options struct {
	// FS is the file system that the store writes through; nil: the real one.
	FS vfs.FS
	// CacheBytes bounds the disk space of assembled images that are not held; 0: 2 GiB. An image that is checked out is
	// not dropped.
	CacheBytes int64
	// LookupPages bounds how many stored pages, of the newest packs, a new image is compared with, and so the memory
	// that this takes; 0: 2^21, which is 8 GiB of pages and up to 170 MB of memory while Add runs.
	LookupPages int

	boot string // identifies the boot, for tests; "" asks the kernel
}

// Store is a directory of memory images. Its methods are safe for concurrent use. Add and Sweep wait for each other;
// Checkout, Stat and List wait for neither.
type Store struct {
	fs      vfs.FS
	dir     string
	options Options
	boot    string // identifies the boot

	top, tmp, packs, images, blobs, inits, cache int // open directories

	// writing is held by Add and Sweep, and guards live. An entry's busy lock is taken after it, and mu last. No file
	// is accessed under mu.
	writing lock
	live    map[digest]*pack // the existing packs, and which of their pages are used

	mu      sync.Mutex
	entries map[ID]*entry // guarded by mu
	tick    uint64        // guarded by mu
	closed  bool          // guarded by mu
}

// pack is a stored file of pages.
type pack struct {
	head header
	live pageSet
}

// entry is an image that exists.
type entry struct {
	image Image
	err   error // why it cannot be used; nil if it can

	busy  lock   // held while its files in the cache are made, checked or dropped
	held  int    // guarded by Store.mu: check-outs that were not released
	used  uint64 // guarded by Store.mu: when it was last checked out; larger is later
	bytes int64  // guarded by Store.mu: disk space of files that are only in the cache
}

// Subdirectories of a store.
const (
	tmpDir    = "tmp"
	packsDir  = "packs"
	imagesDir = "images"
	blobsDir  = "blobs"
	initsDir  = "inits"
	cacheDir  = "cache"
)

// Open opens the store at dir and creates it if it is missing. It removes incomplete data that a killed process left.
// Only one process may have a store open. A damaged image does not prevent the use of the others. The caller calls
// Close.
func Open(ctx context.Context, dir string, o Options) (_ *Store, err error) {
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 2 << 30
	}
	if o.LookupPages == 0 {
		o.LookupPages = 1 << 21
	}
	if o.boot == "" {
		o.boot = bootID()
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fault.Wrap(err, "open the memory store %s", dir)
	}
	s := &Store{
		fs: o.FS, dir: dir, options: o, boot: o.boot, top: -1, tmp: -1, packs: -1, images: -1, blobs: -1,
		inits: -1, cache: -1,
		writing: newLock(), live: map[digest]*pack{}, entries: map[ID]*entry{},
	}
	if err = s.openDirs(); err == nil {
		err = s.load(ctx)
	}
	if err != nil {
		return nil, errors.Join(fault.Wrap(err, "open the memory store %s", dir), s.Close())
	}
	return s, nil
}

// openDirs opens the directories of the store, and makes those that are missing.
func (s *Store) openDirs() (err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if s.top, err = dirfd.OpenDir(unix.AT_FDCWD, s.dir); err != nil {
		return err
	}
	for _, d := range []struct {
		name string
		fd   *int
	}{{tmpDir, &s.tmp}, {packsDir, &s.packs}, {imagesDir, &s.images}, {blobsDir, &s.blobs}, {initsDir, &s.inits},
		{cacheDir, &s.cache}} {
		if err := s.fs.Mkdir(s.top, d.name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		if *d.fd, err = dirfd.OpenDir(s.top, d.name); err != nil {
			return err
		}
	}
	return s.fs.Sync(s.top)
}

// Close releases the store's descriptors. No method may run then or later, but releases may be called; images that
// are checked out stay until the store is opened again.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	var errs []error
	for _, fd := range []int{s.tmp, s.packs, s.images, s.blobs, s.inits, s.cache, s.top} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}

// Stat returns the description of an image. It returns NotFound if there is none, and Corrupt if its manifest
// is damaged.
func (s *Store) Stat(id ID) (Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[id]
	if e == nil {
		return Image{}, missing(id)
	}
	return e.image, e.err
}

// List returns the images whose manifests are intact, sorted by ID.
func (s *Store) List() []Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Image
	for _, e := range s.entries {
		if e.err == nil {
			out = append(out, e.image)
		}
	}
	slices.SortFunc(out, func(a, b Image) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out
}

func missing(id ID) error {
	return fault.New(fault.NotFound, "memory image %.64q not found", string(id))
}

// corrupt returns the error of a damaged image.
func corrupt(format string, args ...any) *fault.Error {
	return fault.New(fault.Corrupt, format, args...).
		WithHint("the disk or another program changed it, and the memory is lost; the files of the snapshot are stored " +
			"separately: coppice rewind NAME REF --files-only")
}

// bootID identifies the current boot of the machine. If it cannot be determined, it is different each time.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if id := strings.TrimSpace(string(b)); err == nil && id != "" && len(id) < 64 && !strings.ContainsAny(id, " \n") {
		return id
	}
	return scratch("boot")
}

// write creates a file with content b, and flushes it if flush is set.
func (s *Store) write(dir int, name string, b []byte, flush bool) (err error) {
	fd, err := s.fs.Create(dir, name, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		unix.Close(fd)
		if err != nil {
			_ = s.fs.Unlink(dir, name) // swept when the store is opened
		}
	}()
	if err := s.writeSparse(fd, b); err != nil {
		return err
	}
	if !flush {
		return nil
	}
	return s.fs.Sync(fd)
}

// writeSparse writes b to a new file and leaves holes in place of zeros.
func (s *Store) writeSparse(fd int, b []byte) error {
	for off := 0; off < len(b); {
		end := off
		for end < len(b) && !isZero(b[end:min(end+pageSize, len(b))]) {
			end = min(end+pageSize, len(b))
		}
		if end > off {
			if err := s.fs.WriteAt(fd, b[off:end], int64(off)); err != nil {
				return err
			}
		}
		off = min(max(end, off)+pageSize, len(b))
		if end == len(b) {
			return nil
		}
	}
	return s.fs.Truncate(fd, int64(len(b)))
}

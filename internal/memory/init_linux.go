package memory

import (
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/undo"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// An image contains the memory of the programs of Coppice that ran in it, and not their code, which is mapped from
// files that must be the same where the image is resumed. So these programs are stored with the images, once for all
// images that have the same ones.

// The facts of an image that name its programs by the digests of their contents. Add sets them.
const (
	InitFact   = "init"   // the program that is PID 1
	ClientFact = "client" // the program coppice that the sandbox shows to its users
)

// Programs are the files of an image's programs, open for reading. The caller of Add owns them.
type Programs struct {
	Init   *os.File // see InitFact; nil: the image is stored without it
	Client *os.File // see ClientFact; nil: the sandbox shows none
}

// Close closes the files.
func (p Programs) Close() error {
	var all []error
	for _, f := range []*os.File{p.Init, p.Client} {
		if f != nil {
			all = append(all, f.Close())
		}
	}
	return errors.Join(all...)
}

const (
	// initName is the program, in a directory of initsDir.
	initName = "init"
	// sourceName describes the file that the init was copied from, as checkedName describes files that were hashed.
	// While that file is unchanged, it is not read again.
	sourceName = "source"
	maxInit    = 512 << 20 // bytes of an init
	// initMode lets any user read the program, since a sandbox with shifted ids runs it as another user. Its
	// directories are accessible only to the owner.
	initMode = 0o555
)

// Program returns the file with the program of an image that a fact names, InitFact or ClientFact, complete and
// verified; "" if the image was added without it. The file exists as long as the image, and as long as a process has
// it locked with flock(2).
//
// Program returns NotFound if the image does not exist, and Corrupt if the program is damaged or missing.
func (s *Store) Program(ctx context.Context, id ID, fact string) (string, error) {
	e, err := s.hold(id)
	if err != nil {
		return "", err
	}
	defer s.letGo(e)
	return s.program(ctx, e.image.Facts, fact, false)
}

// program is Program for an image with these facts. again hashes the file even if it was hashed.
func (s *Store) program(ctx context.Context, facts Facts, fact string, again bool) (string, error) {
	name := facts[fact]
	if name == "" {
		return "", nil
	}
	sum, ok := parseID(name)
	if !ok {
		return "", corrupt("invalid name %.80q of the program %s of a memory image", name, fact)
	}
	if err := s.checkInit(ctx, sum, again); err != nil {
		return "", err
	}
	return filepath.Join(s.dir, initsDir, name, initName), nil
}

// checkInit returns an error unless an init exists and is what was stored. It hashes the file if again is set, or if
// it was not hashed since the machine was started.
func (s *Store) checkInit(ctx context.Context, sum digest, again bool) error {
	at := filepath.Join(s.dir, initsDir, sum.String(), initName)
	dir, err := dirfd.OpenDir(s.inits, sum.String())
	if err == nil {
		defer unix.Close(dir)
		if !again && s.isChecked(dir, initName) {
			return nil
		}
		var st unix.Stat_t
		var fd int
		if fd, st, err = dirfd.OpenRegular(dir, initName); err == nil {
			defer unix.Close(fd)
			var got digest
			if got, err = copyHashed(ctx, fd, st.Size, nil); err == nil && got == sum {
				_ = s.setChecked(dir, initName) // otherwise it is hashed again
				return nil
			}
		}
	}
	switch {
	case transient(err):
		return err
	case errors.Is(err, unix.ENOENT):
		return withoutInit("%s, a program of a memory image, is missing", at)
	}
	if dir >= 0 {
		_ = s.fs.Unlink(dir, checkedName) // it is stale
	}
	return withoutInit("%s, a program of a memory image, does not match its digest", at).Because(err)
}

// withoutInit returns the error of an image whose init is damaged or missing.
func withoutInit(format string, args ...any) *fault.Error {
	return fault.New(fault.Corrupt, format, args...).
		WithHint("the disk or another program changed it; it is restored when the memory of a sandbox with the same " +
			"program is saved again; to rewind only files: coppice rewind NAME REF --files-only")
}

// copyHashed reads a file of size bytes, passes each piece to write, unless write is nil, and returns the digest of
// the file.
func copyHashed(
	ctx context.Context, fd int, size int64, write func(p []byte, off int64) error,
) (sum digest, err error) {
	h := sha256.New()
	buf := make([]byte, min(size, 1<<20))
	for off := int64(0); off < size; off += int64(len(buf)) {
		if err := context.Cause(ctx); err != nil {
			return sum, err
		}
		buf = buf[:min(int64(len(buf)), size-off)]
		if err := readFull(fd, buf, off); err != nil {
			return sum, err
		}
		h.Write(buf)
		if write != nil {
			if err := write(buf, off); err != nil {
				return sum, err
			}
		}
	}
	return digest(h.Sum(nil)), nil
}

// putPrograms stores the programs of the new image, flushed, unless the store has them, and names them in the facts.
func (a *adding) putPrograms(ctx context.Context, u *undo.Stack) error {
	facts := Facts{}
	for k, v := range a.m.facts {
		facts[k] = v
	}
	for _, p := range []struct {
		fact string
		file *os.File
	}{{InitFact, a.programs.Init}, {ClientFact, a.programs.Client}} {
		if facts[p.fact] != "" {
			return fault.New(fault.Invalid, "invalid fact %q of a memory image: reserved for the store", p.fact)
		}
		if p.file == nil {
			continue
		}
		sum, err := a.putProgram(ctx, p.file, u)
		if err != nil {
			return fault.Wrap(err, "store the %s of the image", p.fact)
		}
		facts[p.fact] = sum.String()
	}
	a.m.facts = facts
	return nil
}

func (a *adding) putProgram(ctx context.Context, f *os.File, u *undo.Stack) (sum digest, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return sum, fault.Wrap(err, "read the program")
	}
	if !dirfd.IsRegular(&st) || st.Size == 0 || st.Size > maxInit {
		return sum, fault.New(fault.Invalid,
			"the program of a memory image has %d bytes, more than the limit of %d", st.Size, maxInit)
	}
	if sum, err = a.s.keepInit(ctx, int(f.Fd()), &st, u); err != nil {
		a.need += st.Size // bytes that the disk lacks
	}
	return sum, err
}

// keepInit stores the content of an open file, unless the store has it. The caller holds writing.
func (s *Store) keepInit(ctx context.Context, fd int, st *unix.Stat_t, u *undo.Stack) (sum digest, err error) {
	b := s.recordHead()
	describeFile(&b, sourceName, st)
	source := b.Bytes()
	if sum, ok := s.copiedFrom(source); ok && s.checkInit(ctx, sum, false) == nil {
		return sum, nil
	}
	if sum, err = copyHashed(ctx, fd, st.Size, nil); err != nil {
		return sum, err
	}
	if err := s.checkInit(ctx, sum, false); err != nil {
		if transient(err) {
			return sum, err
		}
		if err := s.writeInit(ctx, fd, st.Size, sum, u); err != nil {
			return sum, err
		}
	}
	s.noteSource(sum, source)
	return sum, nil
}

// copiedFrom finds the init that was copied from a file with this description.
func (s *Store) copiedFrom(source []byte) (sum digest, ok bool) {
	all, err := dirfd.Names(s.inits)
	if err != nil {
		return sum, false
	}
	for _, name := range all {
		sum, ok := parseID(name)
		if !ok {
			continue
		}
		dir, err := dirfd.OpenDir(s.inits, name)
		if err != nil {
			continue
		}
		was, err := readAt(dir, sourceName, 4096)
		unix.Close(dir)
		if err == nil && string(was) == string(source) {
			return sum, true
		}
	}
	return sum, false
}

// noteSource records the file that an init was copied from. If it fails, the file is read again next time.
func (s *Store) noteSource(sum digest, source []byte) {
	dir, err := dirfd.OpenDir(s.inits, sum.String())
	if err != nil {
		return
	}
	defer unix.Close(dir)
	name := scratch("source")
	if s.write(s.tmp, name, source, false) != nil {
		return
	}
	if s.fs.Rename(s.tmp, name, dir, sourceName) != nil {
		_ = s.fs.Unlink(s.tmp, name) // swept when the store is opened
	}
}

// writeInit writes an init, which is missing or damaged, and flushes it. It never links the source file, which an
// installation of another version may overwrite.
func (s *Store) writeInit(ctx context.Context, fd int, size int64, sum digest, u *undo.Stack) (err error) {
	temp := scratch("init")
	out, err := s.fs.Create(s.tmp, temp, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		unix.Close(out)
		if err != nil {
			_ = s.fs.Unlink(s.tmp, temp) // swept when the store is opened
		}
	}()
	var got digest
	switch err = s.fs.Clone(out, fd); {
	case err == nil:
		got, err = copyHashed(ctx, out, size, nil)
	case errors.Is(err, vfs.ErrNoClone):
		got, err = copyHashed(ctx, fd, size, func(p []byte, off int64) error { return s.fs.WriteAt(out, p, off) })
	}
	if err == nil && got != sum {
		err = fault.New(fault.Conflict, "the program changed while it was copied").
			WithHint("replace coppice by renaming a new file into place, then try again")
	}
	if err == nil {
		err = s.fs.Chmod(out, initMode)
	}
	if err == nil {
		err = s.fs.Sync(out)
	}
	if err != nil {
		return err
	}
	name := sum.String()
	switch err = s.fs.Mkdir(s.inits, name, 0o700); {
	case err == nil:
		u.Push(func() error { return remove(s.fs, s.inits, name) })
	case !errors.Is(err, unix.EEXIST):
		return err
	}
	dir, err := dirfd.OpenDir(s.inits, name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err = s.fs.Rename(s.tmp, temp, dir, initName); err != nil {
		return err
	}
	if err = s.fs.Sync(dir); err != nil {
		return err
	}
	if err = s.fs.Sync(s.inits); err != nil {
		return err
	}
	_ = s.setChecked(dir, initName) // otherwise it is hashed again
	return nil
}

// unusedInit reports whether an init that no image names is not in use. A sandbox that resumed from an image outlives
// the image, and the daemon.
func (s *Store) unusedInit(name string) bool {
	dir, err := dirfd.OpenDir(s.inits, name)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	fd, _, err := dirfd.OpenRegular(dir, initName)
	if err != nil {
		return errors.Is(err, unix.ENOENT) // not completely written
	}
	defer unix.Close(fd)
	_, err = again(func() (struct{}, error) { return struct{}{}, unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	return err == nil
}

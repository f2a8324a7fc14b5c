//go:build linux && (amd64 || arm64)

package guest

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/mounts"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/thread"
)

// heldFiles are the files that init needs to re-key a sandbox that is resumed from a memory image, in tier gvisor. Init
// opens them before any program of the sandbox runs: root inside owns /run, and could later put another file, a link or
// a named pipe at a name there. The descriptors are part of the memory image.
type heldFiles struct {
	proc       int                 // init's procfs, O_PATH
	files      int                 // a directory of a tmpfs that has no name in the sandbox, O_PATH
	random     *os.File            // the kernel's random number generator, open for writing
	trust      []*os.File          // the certificate bundles that init wrote
	java       map[string]*os.File // the files mounted over Java stores, by their names in the sandbox
	regions    []rootspec.Region
	identities map[int]*os.File // files in the directory files that are mounted over others, by index in identities
}

// identityDir is the mount point of the tmpfs of heldFiles.
const identityDir = "/run/coppice-identity"

// hold creates and opens all of them. No program of the sandbox may have run yet.
func hold(g plan.Guest) (*heldFiles, error) {
	h := &heldFiles{regions: g.Regions, java: map[string]*os.File{}, identities: map[int]*os.File{}}
	var err error
	if h.proc, err = openProc(); err != nil {
		return nil, err
	}
	if h.files, err = hiddenTmpfs(identityDir); err != nil {
		return nil, err
	}
	if h.random, err = os.OpenFile("/dev/urandom", os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err != nil {
		return nil, fault.Wrap(err, "open the random number generator")
	}
	names, err := filepath.Glob(plan.TrustDir + "/*.pem")
	if err != nil {
		return nil, fault.Wrap(err, "list %s", plan.TrustDir)
	}
	if len(plan.KnownHosts(g.CA)) > 0 {
		names = append(names, plan.SSHHosts)
	}
	const flags = os.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK
	for _, name := range names {
		f, err := os.OpenFile(name, flags, 0)
		if err != nil {
			return nil, fault.Wrap(err, "pin %s", name)
		}
		h.trust = append(h.trust, f)
	}
	for i, s := range g.Java {
		for n, name := range s.Paths {
			f, err := os.OpenFile(javaFile(i, n), flags, 0)
			if errors.Is(err, os.ErrNotExist) {
				continue // the store was not to be covered
			}
			if err != nil {
				return nil, fault.Wrap(err, "pin the overlay file of %q", name)
			}
			h.java[string(name)] = f
		}
	}
	return h, nil
}

// openProc opens, O_PATH, the procfs at /proc.
func openProc() (int, error) {
	fd, err := openDir("/proc")
	if err != nil {
		return -1, err
	}
	if err := mounts.CheckProc(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func openDir(name string) (int, error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	return fd, fault.Wrap(err, "open %s", name)
}

// hiddenTmpfs returns a tmpfs that is reachable only through the descriptor. It stays mounted, below an empty tmpfs,
// since files of a detached mount cannot be bound elsewhere.
func hiddenTmpfs(at string) (int, error) {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := os.Mkdir(at, 0o700); err != nil {
		return -1, fault.Wrap(err, "make %s", at)
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", flags, "mode=755,size=64k"); err != nil {
		return -1, fault.Wrap(err, "mount a file system at %s", at)
	}
	fd, err := openDir(at)
	if err != nil {
		return -1, err
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", flags|unix.MS_RDONLY, "mode=0"); err != nil {
		unix.Close(fd)
		return -1, fault.Wrap(err, "hide %s", at)
	}
	return fd, nil
}

// replaceTrust replaces a certificate in the bundles. It rewrites them in place, since they are mounted at other names
// too.
func (h *heldFiles) replaceTrust(replace func([]byte) []byte) error {
	for _, f := range h.trust {
		have, err := io.ReadAll(io.NewSectionReader(f, 0, limit.TrustStoreBytes+1))
		if err != nil {
			return fault.Wrap(err, "read %s", f.Name())
		}
		if len(have) > limit.TrustStoreBytes {
			return fault.New(fault.TooLarge, "%s exceeds %d bytes inside the sandbox", f.Name(), limit.TrustStoreBytes).
				WithHint("rewind its files only: coppice rewind --files-only")
		}
		if err := rewrite(f, replace(have)); err != nil {
			return err
		}
	}
	return nil
}

// replaceJava rewrites the files that are mounted over Java stores.
func (h *heldFiles) replaceJava(stores []plan.JavaStore) error {
	for _, s := range stores {
		for _, name := range s.Paths {
			if f := h.java[string(name)]; f != nil {
				if err := rewrite(f, s.Content); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// lay sets the content of the file at name in the sandbox. It mounts a file over the one to which name resolves now, or
// rewrites the file that an earlier call mounted there. It returns false if name does not resolve to a regular file
// that may be covered (rootspec.MayCover).
func (h *heldFiles) lay(i int, name string, text []byte) (bool, error) {
	over, err := h.openRegular(name)
	if err != nil || over == nil {
		return false, err
	}
	defer over.Close()
	if f := h.identities[i]; f != nil {
		if same, err := sameFile(f, over); err != nil || same {
			return same, errors.Join(err, rewrite(f, text))
		}
		delete(h.identities, i) // the sandbox has replaced the file at that name
		f.Close()
		if err := unix.Unlinkat(h.files, strconv.Itoa(i), 0); err != nil {
			return false, fault.Wrap(err, "remove the overlay file of %s", name)
		}
	}
	if ok, _, err := mayCover(h.proc, h.regions, name, over); err != nil || !ok {
		return false, err
	}
	fd, err := unix.Openat(h.files, strconv.Itoa(i), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC,
		0o444)
	if err != nil {
		return false, fault.Wrap(err, "create the overlay file of %s", name)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := errors.Join(rewrite(f, text), f.Chmod(0o444), bindOpen(h.proc, f, over)); err != nil {
		f.Close()
		_ = unix.Unlinkat(h.files, strconv.Itoa(i), 0)
		return false, fault.Wrap(err, "mount a file over %s", name)
	}
	h.identities[i] = f
	return true, nil
}

// bindOpen mounts one open file over another, where open_tree(2) cannot. mount(2) takes names, so it uses the names of
// the descriptors in a procfs. They are relative to the working directory, which a separate thread sets to that procfs.
func bindOpen(proc int, from, over *os.File) (err error) {
	thread.OnOwn(func() {
		if err = unix.Unshare(unix.CLONE_FS); err != nil {
			err = fault.Wrap(err, "leave the working directory")
			return
		}
		if err = unix.Fchdir(proc); err != nil {
			err = fault.Wrap(err, "enter /proc")
			return
		}
		at := func(f *os.File) string { return "self/fd/" + strconv.Itoa(int(f.Fd())) }
		err = unix.Mount(at(from), at(over), "", unix.MS_BIND, "")
	})
	return err
}

// openRegular opens, with O_PATH, the regular file to which a name of the sandbox resolves. It returns nil if there is
// none. Names in /proc are looked up in init's procfs.
func (h *heldFiles) openRegular(name string) (*os.File, error) {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.Wrap(err, "open the root")
	}
	defer unix.Close(root)
	dir, beneath := root, strings.TrimPrefix(name, "/")
	if rest, ok := strings.CutPrefix(name, "/proc/"); ok {
		dir, beneath = h.proc, rest
	}
	fd, err := rootspec.OpenInRoot(dir, beneath, unix.O_PATH)
	if fault.Is(err, fault.Unavailable) {
		return nil, err
	}
	if err != nil {
		return nil, nil // no such file, or a loop of links
	}
	f := os.NewFile(uintptr(fd), name)
	st, err := f.Stat()
	if err == nil && st.Mode().IsRegular() {
		return f, nil
	}
	f.Close()
	return nil, err
}

func sameFile(a, b *os.File) (bool, error) {
	x, err := a.Stat()
	y, err2 := b.Stat()
	if err := errors.Join(err, err2); err != nil {
		return false, fault.Wrap(err, "compare %s with its overlay file", b.Name())
	}
	return os.SameFile(x, y), nil
}

// rewrite replaces the contents of an open file.
func rewrite(f *os.File, text []byte) error {
	if err := f.Truncate(0); err != nil {
		return fault.Wrap(err, "rewrite %s", f.Name())
	}
	_, err := f.WriteAt(text, 0)
	return fault.Wrap(err, "rewrite %s", f.Name())
}

// machineID formats 16 random bytes as in machine-id(5).
func machineID(b []byte) string { return hex.EncodeToString(b) + "\n" }

// uuid formats 16 random bytes as a UUID of version 4 (RFC 9562).
func uuid(b []byte) string {
	u := [16]byte(b)
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

//go:build linux && (amd64 || arm64)

package escape

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// keeps selects sandboxes with files that they must not change.
func keeps(f Facts) bool { return len(f.Kept) > 0 }

var evil = []byte("written by an attacker")

// changed tries ways to change the file at p, and checks whether it has changed by reading its path, as any other
// process would.
func (f Facts) changed(p string, ways map[string]func() error) error {
	before, _ := stat(p)
	return any1(ways2(ways, func(err error) error {
		b, rerr := os.ReadFile(p)
		if rerr == nil {
			rerr = f.holds(b)
		}
		if rerr != nil {
			tell(os.Stdout, p, "is", string(b), rerr)
			return nil // the content has changed
		}
		after, lerr := stat(p)
		if lerr == nil && after == before {
			return f.real(err)
		}
		if err == nil {
			tell(os.Stdout, p, "is", after, lerr, "and was", before)
		}
		return err
	}))
}

// stat returns the state of p without its access time.
func stat(p string) (st unix.Stat_t, err error) {
	err = unix.Lstat(p, &st)
	st.Atim = unix.Timespec{}
	return st, err
}

// real returns an error for an attempt that changed nothing although the sandbox's own kernel reports success.
func (f Facts) real(err error) error {
	if err == nil && f.Own {
		return errNothing
	}
	return err
}

// ways2 returns ways whose results are passed through look.
func ways2(ways map[string]func() error, look func(error) error) map[string]func() error {
	out := map[string]func() error{}
	for n, way := range ways {
		out[n] = func() error { return look(way()) }
	}
	return out
}

// appended opens p with flags and writes to it.
func appended(p string, flags int) error {
	fd, err := unix.Open(p, flags|unix.O_CLOEXEC, 0o666)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, evil)
	return err
}

// throughOwn opens p in an allowed way, and then again through its descriptor.
func throughOwn(p string, first int) error {
	fd, err := unix.Open(p, first|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return appended("/proc/self/fd/"+strconv.Itoa(fd), unix.O_WRONLY)
}

// either returns an error only if all of errs are errors.
func either(errs ...error) error {
	for _, err := range errs {
		if err == nil {
			return nil
		}
	}
	return errors.Join(errs...)
}

var keptAttacks = []Attack{
	{Name: "write-read-only", None: Files,
		What: "write to what is read-only: by every way to open it, by its metadata, by another name of it", Applies: keeps,
		Run: func(f Facts) error {
			return each(f.Kept, func(p string) error { return f.changed(p, writes(p, f.KeptIn)) })
		}},
	{Name: "replace-read-only", Refused: []string{"mount", "mount_setattr", "umount2"},
		What: "put something else in the place of what is read-only, or of a directory around it", Applies: keeps,
		Run: func(f Facts) error {
			return each(f.Kept, func(p string) error {
				ways, err := replacements(p, f.KeptIn)
				if err != nil {
					return err
				}
				return f.changed(p, ways)
			})
		}},
}

// writes are ways to change the file at p, and the directories around it up to in, which itself can be changed.
func writes(p, in string) map[string]func() error {
	dir, link, twin := filepath.Dir(p), filepath.Join(os.TempDir(), "escape-kept"),
		filepath.Join(filepath.Dir(filepath.Dir(p)), "escape-twin")
	ways := map[string]func() error{
		"open":     func() error { return appended(p, unix.O_WRONLY) },
		"append":   func() error { return appended(p, unix.O_WRONLY|unix.O_APPEND) },
		"read":     func() error { return appended(p, unix.O_RDWR) },
		"trunc":    func() error { return appended(p, unix.O_WRONLY|unix.O_TRUNC) },
		"create":   func() error { return appended(p, unix.O_WRONLY|unix.O_CREAT) },
		"root":     func() error { return appended("/proc/self/root"+p, unix.O_WRONLY) },
		"reopen":   func() error { return throughOwn(p, unix.O_RDONLY) },
		"path":     func() error { return throughOwn(p, unix.O_PATH) },
		"init":     func() error { return appended("/proc/1/root"+p, unix.O_WRONLY) },
		"truncate": func() error { return unix.Truncate(p, 0) },
		"chmod":    func() error { return os.Chmod(p, 0o777) },
		"chown":    func() error { return os.Lchown(p, os.Getuid()+1, os.Getgid()+1) },
		"times":    func() error { return unix.Utimes(p, []unix.Timeval{{}, {}}) },
		"xattr":    func() error { return unix.Setxattr(p, "user.evil", evil, 0) },
		"link": func() error {
			if err := os.Link(p, twin); err != nil {
				return err
			}
			return appended(twin, unix.O_WRONLY)
		},
		"link-fd": func() error {
			fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), unix.AT_FDCWD, twin,
				unix.AT_SYMLINK_FOLLOW); err != nil {
				return err
			}
			return appended(twin, unix.O_WRONLY)
		},
		"symlink": func() error {
			_ = os.Remove(link)
			if err := os.Symlink(p, link); err != nil {
				return err
			}
			return appended(link, unix.O_WRONLY)
		},
		"mapped": func() error {
			fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			b, err := unix.Mmap(fd, 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				return err
			}
			b[0] = 'x'
			return nil
		},
		"protect": func() error {
			fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			b, err := unix.Mmap(fd, 0, 4, unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				return err
			}
			if err := unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE); err != nil {
				return err
			}
			b[0] = 'x'
			return nil
		},
	}
	if dir != in {
		ways["beside"] = func() error { return appended(filepath.Join(dir, "new"), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL) }
		ways["nameless"] = func() error { return appended(dir, unix.O_WRONLY|unix.O_TMPFILE) }
		ways["dirmode"] = func() error { return os.Chmod(dir, 0o777) }
	}
	return ways
}

// replacements are ways to replace the file at p, and the directories around it up to and including in.
func replacements(p, in string) (map[string]func() error, error) {
	own, err := os.MkdirTemp(filepath.Dir(in), "own")
	if err != nil { // if that directory cannot be written, try another
		own, err = os.MkdirTemp("", "own")
	}
	if err != nil {
		return nil, err
	}
	file := filepath.Join(own, "file")
	if err := os.WriteFile(file, evil, 0o666); err != nil {
		return nil, err
	}
	ways := map[string]func() error{
		"remove": func() error { return os.Remove(p) },
		"over":   func() error { return os.Rename(file, p) },
		"swap":   func() error { return unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, p, unix.RENAME_EXCHANGE) },
	}
	// Each directory in the path, as far as it could be writable.
	for d := p; len(d) >= len(in); d = filepath.Dir(d) {
		ways["move "+d] = func() error {
			away := filepath.Join(own, "away")
			if err := either(os.Rename(d, away), os.Rename(d, d+"-away")); err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Dir(p), 0o777); err != nil {
				return fmt.Errorf("moved: %w", err)
			}
			return os.WriteFile(p, evil, 0o666)
		}
		ways["swap "+d] = func() error {
			dir := filepath.Join(own, "dir")
			_ = os.Mkdir(dir, 0o777)
			return unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, d, unix.RENAME_EXCHANGE)
		}
		ways["whiteout "+d] = func() error {
			return unix.Renameat2(unix.AT_FDCWD, d, unix.AT_FDCWD, filepath.Join(own, "w"), unix.RENAME_WHITEOUT)
		}
		ways["rmdir "+d] = func() error { return either(unix.Rmdir(d), unix.Unlink(d)) }
		ways["bind "+d] = func() error { return unix.Mount(own, d, "", unix.MS_BIND, "") }
		ways["remount "+d] = func() error { return unix.Mount("", d, "", unix.MS_REMOUNT|unix.MS_BIND, "") }
		ways["setattr "+d] = func() error {
			return unix.MountSetattr(unix.AT_FDCWD, d, unix.AT_RECURSIVE, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
		}
		ways["unmount "+d] = func() error { return either(unix.Unmount(d, unix.MNT_DETACH), unix.Unmount(d, 0)) }
	}
	ways["namespaces"] = func() error {
		attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS}
		proc, err := os.StartProcess("/proc/self/exe", []string{"/bin/true"}, &os.ProcAttr{Sys: attr})
		if err != nil {
			return err
		}
		_, err = proc.Wait()
		return err
	}
	ways["recursive"] = func() error {
		_ = os.RemoveAll(in)
		return errNothing
	}
	return ways, nil
}

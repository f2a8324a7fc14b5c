//go:build linux && (amd64 || arm64)

package escape

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

var fileAttacks = []Attack{
	{Name: "read-outside", None: Files,
		What: "open files outside, in the store and in another sandbox by their host paths", Run: func(f Facts) error {
			return each(f.Files, func(p string) error { return f.read(p) })
		}},
	{Name: "write-outside", None: Files, What: "create files beside them", Run: func(f Facts) error {
		// A directory with the same name inside is not an escape: the harness checks outside.
		return each(f.Files, func(p string) error {
			if _, err := os.Stat(p); err != nil {
				return err
			}
			return os.WriteFile(p, []byte("written by an attacker"), 0o666)
		})
	}},
	{Name: "dot-dot", None: Files, What: "climb out of the root by ..", Run: func(f Facts) error {
		return each(f.Files, func(p string) error { return f.read(strings.Repeat("/..", 64) + p) })
	}},
	{Name: "symlink", None: Files, What: "a symbolic link to outside", Run: func(f Facts) error {
		return each(f.Files, func(p string) error {
			link := filepath.Join(os.TempDir(), "escape-link")
			_ = os.Remove(link)
			if err := os.Symlink(p, link); err != nil {
				return err
			}
			return f.read(link)
		})
	}},
	{Name: "behind-a-mask", None: Files,
		What: "reach a hidden file by hard links, by other names of the directories around it, and by making its place " +
			"and removing it again", Run: func(f Facts) error {
			return each(f.Files, func(p string) error {
				dir := filepath.Dir(p)
				around, moved := filepath.Dir(dir), filepath.Dir(dir)+"-moved"
				tries := []func() error{
					func() error {
						link := filepath.Join(os.TempDir(), "escape-hard-link")
						_ = os.Remove(link)
						if err := os.Link(p, link); err != nil {
							return err
						}
						return f.read(link)
					},
					func() error { return f.read("/proc/self/root" + p) },
					func() error {
						if err := os.Rename(around, moved); err != nil {
							return err
						}
						err := f.read(moved + strings.TrimPrefix(p, around))
						return errors.Join(err, os.Rename(moved, around))
					},
					func() error {
						if err := os.Mkdir(dir, 0o755); err != nil {
							return err
						}
						own := f.read(p)
						if err := os.Rename(dir, dir+"-moved"); err != nil {
							return err
						}
						if own == nil || f.read(p) == nil || f.read(filepath.Join(dir+"-moved", filepath.Base(p))) == nil {
							return nil
						}
						return errors.Join(errNothing, os.Remove(dir+"-moved"))
					},
				}
				return each(tries, func(try func() error) error { return try() })
			})
		}},
	{Name: "chroot-breakout", None: Kernel, What: "chroot below the working directory, and climb out of it",
		Run: func(f Facts) error {
			dir, err := os.MkdirTemp("", "jail")
			if err != nil {
				return err
			}
			top, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY, 0)
			if err != nil {
				return err
			}
			if err := unix.Chroot(dir); err != nil {
				return fmt.Errorf("chroot: %w", err)
			}
			if err := unix.Fchdir(top); err != nil {
				return fmt.Errorf("fchdir: %w", err)
			}
			for range 64 {
				if err := unix.Chdir(".."); err != nil {
					return fmt.Errorf("climb: %w", err)
				}
			}
			if err := unix.Chroot("."); err != nil {
				return fmt.Errorf("chroot out: %w", err)
			}
			return each(f.Files, f.read)
		}},
	{Name: "descriptors",
		Emulated: "a pipe of which no other process has an end: gVisor's packages make one as the attacker, which is this " +
			"binary, starts", None: Nothing, What: "find descriptors that were left open", Run: func(f Facts) error {
			entries, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				return err
			}
			var left []string
			pipes := map[string][]int{}
			for _, e := range entries {
				if e.Name() == "0" || e.Name() == "1" || e.Name() == "2" {
					continue
				}
				to, err := os.Readlink("/proc/self/fd/" + e.Name())
				if err != nil || strings.HasPrefix(to, "anon_inode:[event") || strings.HasSuffix(to, "/fd") ||
					strings.HasPrefix(to, "/sys/fs/cgroup") {
					continue // it was closed, or belongs to the Go runtime
				}
				if n, err := strconv.Atoi(e.Name()); err == nil && f.Own && strings.HasPrefix(to, "pipe:") {
					pipes[to] = append(pipes[to], n)
					continue
				}
				left = append(left, e.Name()+" "+to)
			}
			emulated := errNothing
			for to, ends := range pipes {
				if len(ends) == 2 && leadsNowhere(ends[0], ends[1]) {
					emulated = errOwn
					continue
				}
				left = append(left, to)
			}
			if len(left) == 0 {
				return emulated
			}
			tell(os.Stdout, left)
			return nil
		}},
	{Name: "standard-descriptors", None: Nothing, What: "walk to other files from stdin, stdout and stderr",
		Run: func(f Facts) error {
			return each([]int{0, 1, 2}, func(fd int) error {
				var st unix.Stat_t
				if err := unix.Fstat(fd, &st); err != nil {
					return err
				}
				if st.Mode&unix.S_IFMT == unix.S_IFDIR {
					return nil
				}
				if st.Mode&unix.S_IFMT == unix.S_IFREG {
					return nil // a file of the host
				}
				return errNothing
			})
		}},
	{Name: "environment", None: Nothing, What: "find what the daemon's environment held", Run: func(f Facts) error {
		return f.holds([]byte(strings.Join(unix.Environ(), "\n")))
	}},
	{Name: "handle", Refused: []string{"open_by_handle_at"}, What: "open_by_handle_at of inodes by number (shocker)",
		Run: func(f Facts) error {
			h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, "/", 0)
			if err != nil {
				h = unix.NewFileHandle(1, []byte{2, 0, 0, 0, 0, 0, 0, 0}) // inode 2: the root of ext4
			}
			dir, err := unix.Open("/etc", unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			fd, err := unix.OpenByHandleAt(dir, h, unix.O_RDONLY)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}},
	{Name: "the-binary", None: Files, What: "overwrite the binary that init runs, by /proc/1/exe (CVE-2019-5736)",
		Run: func(f Facts) error {
			exes, _ := filepath.Glob("/proc/[0-9]*/exe")
			exes = append(exes, "/proc/1/exe")
			mine, _ := os.Stat("/proc/self/exe")
			return each(exes, func(p string) error {
				if st, err := os.Stat(p); err == nil && os.SameFile(st, mine) {
					return errNothing // the attacker's own, a file of the sandbox
				}
				for _, flags := range []int{os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC} {
					if w, err := os.OpenFile(p, flags, 0); err == nil {
						w.Close()
						return nil
					}
				}
				fd, err := unix.Open(p, unix.O_PATH, 0)
				if err != nil {
					return err
				}
				w, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_WRONLY, 0)
				if err != nil {
					return err
				}
				return w.Close()
			})
		}},
	{Name: "remove-the-binary", None: Files, What: "write, by a mount, to the directory that the binary lies in",
		Run: func(f Facts) error {
			exe, err := os.Readlink("/proc/1/exe")
			if err != nil {
				return err
			}
			return os.Remove(exe)
		}},
}

// leadsNowhere reports whether only this process has the pipe with the ends r and w, and closes both ends.
func leadsNowhere(r, w int) bool {
	defer unix.Close(w)
	again, err := unix.Open("/proc/self/fd/"+strconv.Itoa(r), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(again)
	// Once this read end is closed, a write succeeds only if there is another reader.
	if err := unix.Close(r); err != nil {
		return false
	}
	if _, err := unix.Write(again, []byte("x")); !errors.Is(err, unix.EPIPE) {
		return false
	}
	// The same check for writers.
	if r, err = unix.Open("/proc/self/fd/"+strconv.Itoa(again), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC,
		0); err != nil {
		return false
	}
	defer unix.Close(r)
	if errors.Join(unix.Dup3(r, w, unix.O_CLOEXEC), unix.Dup3(r, again, unix.O_CLOEXEC)) != nil {
		return false
	}
	n, err := unix.Read(r, make([]byte, 1))
	return n == 0 && err == nil
}

func (f Facts) read(p string) error {
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := make([]byte, 65536)
	n, err := unix.Read(fd, b)
	if err != nil {
		return err
	}
	return f.holds(b[:max(n, 0)])
}

// writable returns nil if p can be opened for writing. It writes nothing, since that would break the machine for most
// paths.
func writable(p string) error {
	fd, err := unix.Open(p, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Close(fd))
}

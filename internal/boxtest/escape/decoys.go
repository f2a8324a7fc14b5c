//go:build linux && (amd64 || arm64)

package escape

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DecoyText is the beginning of every planted honeytoken.
const DecoyText = "not a secret"

// decoyed selects sandboxes with honeytokens.
func decoyed(f Facts) bool { return len(f.Decoys) > 0 }

// touched begins the lines in which an attack reports that it has read a honeytoken; the rest of the line is its path.
const touched = "touched "

// Touched returns the honeytokens that an attack has read, according to its output.
func Touched(out string) (paths []string) {
	for line := range strings.Lines(out) {
		if p, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), touched); ok {
			paths = append(paths, p)
		}
	}
	return paths
}

// took prints that the honeytoken at p was read.
func took(p string, b []byte) error {
	if !bytes.HasPrefix(b, []byte(DecoyText)) {
		return errNothing
	}
	tell(os.Stdout, touched+p)
	return nil
}

// readDecoy reads the honeytoken at p from fd. err is the error of opening it.
func readDecoy(p string, fd int, err error) error {
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := make([]byte, 64)
	n, err := unix.Read(fd, b)
	if err != nil {
		return err
	}
	return took(p, b[:n])
}

// errUnseen means that a honeytoken can be read without being noticed.
var errUnseen = errors.New("it can be read unnoticed")

// glances are ways to read the honeytoken at p that could go unnoticed.
var glances = []struct {
	name string
	read func(p string) error
}{
	{"open", func(p string) error {
		fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return readDecoy(p, fd, err)
	}},
	{"without the time of access", func(p string) error {
		fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NOATIME|unix.O_CLOEXEC, 0)
		return readDecoy(p, fd, err)
	}},
	{"for reads and locks alone", func(p string) error {
		fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW|unix.O_LARGEFILE|unix.O_CLOEXEC,
			0)
		return readDecoy(p, fd, err)
	}},
	{"mapped", func(p string) error {
		fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		b, err := unix.Mmap(fd, 0, len(DecoyText), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
		unix.Close(fd)
		if err != nil {
			return err
		}
		return took(p, b)
	}},
	{"by the path of a descriptor", func(p string) error {
		fd, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		again, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return readDecoy(p, again, err)
	}},
	{"through the root of a thread", func(p string) error {
		fd, err := unix.Open(fmt.Sprintf("/proc/self/task/%d/root%s", unix.Gettid(), p), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return readDecoy(p, fd, err)
	}},
	{"through the root of init", func(p string) error {
		fd, err := unix.Open("/proc/1/root"+p, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return readDecoy(p, fd, err)
	}},
	{"beneath a descriptor", func(p string) error {
		dir, err := unix.Open(filepath.Dir(p), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		fd, err := unix.Openat2(dir, filepath.Base(p),
			&unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
		return readDecoy(p, fd, err)
	}},
	{"by a child that is killed", func(p string) error {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer r.Close()
		child := exec.Command("/bin/sh", "-c", `cat <"$1"; kill -9 $$`, "sh", p)
		child.Stdout = w
		err = child.Start()
		w.Close()
		if err != nil {
			return err
		}
		b := make([]byte, 64)
		n, rerr := r.Read(b)
		if err := child.Wait(); err == nil {
			return errors.New("it was not killed")
		}
		if rerr != nil {
			return rerr
		}
		return took(p, b[:n])
	}},
	{"in another root", func(p string) error {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // the thread has that root until it exits with the goroutine
			err := unix.Unshare(unix.CLONE_FS)
			if err == nil {
				err = unix.Chroot(filepath.Dir(p))
			}
			if err == nil {
				fd, oerr := unix.Open("/"+filepath.Base(p), unix.O_RDONLY|unix.O_CLOEXEC, 0)
				err = readDecoy(p, fd, oerr)
			}
			done <- err
		}()
		return <-done
	}},
	{"with another name", func(p string) error {
		return each([]string{filepath.Dir(p), os.TempDir()}, func(dir string) error {
			twin := filepath.Join(dir, "twin")
			if err := os.Link(p, twin); err != nil {
				return err
			}
			fd, err := unix.Open(twin, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			return readDecoy(p, fd, err)
		})
	}},
	{"by its handle", func(p string) error {
		h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, p, 0)
		if err != nil {
			h = unix.NewFileHandle(1, []byte{2, 0, 0, 0, 0, 0, 0, 0}) // an inode by its number
		}
		dir, err := unix.Open(filepath.Dir(p), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		fd, err := unix.OpenByHandleAt(dir, h, unix.O_RDONLY|unix.O_CLOEXEC)
		return readDecoy(p, fd, err)
	}},
	{"by a ring", func(p string) error {
		var params [120]byte
		if err := sys(unix.SYS_IO_URING_SETUP, 8, ptr(&params)); err != nil {
			return err
		}
		return errUnseen
	}},
	{"by a watch, whose descriptors no watch sees", func(p string) error {
		fd, err := unix.FanotifyInit(unix.FAN_CLOEXEC|unix.FAN_CLASS_NOTIF, unix.O_RDONLY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN, unix.AT_FDCWD, p); err != nil {
			return err
		}
		return errUnseen
	}},
	{"by a copy of its mount", func(p string) error {
		fd, err := unix.OpenTree(unix.AT_FDCWD, p, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		again, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return readDecoy(p, again, err)
	}},
	{"as a program", func(p string) error { // ENOEXEC shows that the kernel has read it
		err := exec.Command(p).Run()
		if errors.Is(err, unix.ENOEXEC) {
			tell(os.Stdout, touched+p)
		}
		return err
	}},
	{"after the end of a watch", func(p string) error {
		in, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(in)
		// The attacker's own watch of the same inode, and its removal, must not affect other watches.
		wd, err := unix.InotifyAddWatch(in, p, unix.IN_OPEN|unix.IN_ONESHOT)
		if err != nil {
			return err
		}
		_, _ = unix.InotifyRmWatch(in, uint32(wd))
		fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return readDecoy(p, fd, err)
	}},
}

// Glances is how many honeytokens the attacks need: one for each way, one that is read after many others, and one to
// create those events with.
var Glances = len(glances) + 2

var decoyAttacks = []Attack{
	{Name: "read-a-decoy", Refused: []string{"open_by_handle_at", "fanotify_init", "open_tree"},
		What: "read decoys unnoticed: by every way to open them, also by a process that is killed at once, by other " +
			"roots, mounts, names, handles, rings and watches, and behind more openings than the kernel remembers",
		Applies: decoyed, Touches: true, Run: func(f Facts) error {
			for i, way := range glances {
				err := way.read(f.Decoys[i])
				tell(os.Stdout, way.name, err)
				if errors.Is(err, errUnseen) {
					return nil
				}
			}
			// The kernel does not merge events of one file if there are others in between.
			flood, last := f.Decoys[len(glances)], f.Decoys[len(glances)+1]
			for i := range 40000 {
				fd, err := unix.Open([]string{flood, f.Decoys[0]}[i%2], unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					return err
				}
				unix.Close(fd)
			}
			fd, err := unix.Open(last, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err := readDecoy(last, fd, err); err != nil {
				return err
			}
			return errors.New("they were read; the test checks outside whether that is recorded")
		}},
	{Name: "beneath-a-decoy", Refused: []string{"mount", "mount_setattr", "umount2"},
		What: "read the hidden file that a decoy stands for: by links, by other names of the directories around it, by " +
			"making its place again, by taking the decoy off", Applies: decoyed, Run: func(f Facts) error {
			return each(f.Decoys[:2], func(p string) error {
				own, err := os.MkdirTemp(filepath.Dir(f.DecoysIn), "own")
				if err != nil {
					return err
				}
				ways, err := replacements(p, f.DecoysIn)
				if err != nil {
					return err
				}
				ways["root"] = func() error { return f.read("/proc/self/root" + p) }
				ways["init"] = func() error { return f.read("/proc/1/root" + p) }
				ways["link"] = func() error {
					link := filepath.Join(own, "link")
					if err := either(os.Link(p, link), os.Symlink(p, link)); err != nil {
						return err
					}
					return f.read(link)
				}
				ways["copy"] = func() error {
					out, err := exec.Command("/bin/cp", "-a", filepath.Dir(p), filepath.Join(own, "copy")).CombinedOutput()
					if err != nil {
						return fmt.Errorf("%w: %s", err, out)
					}
					return f.read(filepath.Join(own, "copy", filepath.Base(p)))
				}
				ways["overlay"] = func() error {
					return unix.Mount("overlay", own, "overlay", 0, "lowerdir="+filepath.Dir(p)+":"+own)
				}
				// If the attack has cleared the path, the file that would be there.
				return any1(ways2(ways, func(err error) error {
					if f.read(p) == nil {
						return nil
					}
					return either(f.read(filepath.Join(own, filepath.Base(p))), errors.Join(errNothing, err))
				}))
			})
		}},
	{Name: "change-a-decoy", Refused: []string{"mount", "mount_setattr", "umount2"},
		What:    "write to a decoy, or put something else in its place or that of a directory around it, and take it off",
		Applies: decoyed, Run: func(f Facts) error {
			return each(f.Decoys[:2], func(p string) error {
				ways, err := replacements(p, f.DecoysIn)
				if err != nil {
					return err
				}
				for name, way := range writes(p, filepath.Dir(p)) {
					ways["write "+name] = way
				}
				before, err := look(p)
				if err != nil {
					return err
				}
				return any1(ways2(ways, func(err error) error {
					after, lerr := look(p)
					if lerr != nil || after != before {
						tell(os.Stdout, p, "is", after, lerr, "and was", before)
						return nil
					}
					return f.real(err)
				}))
			})
		}},
}

// seen is the state of a file that can be determined without opening the file.
type seen struct {
	dev, ino      uint64
	links         int
	mode, uid     uint32
	size          int64
	changed, made unix.Timespec
}

// look returns the state of the file at p.
func look(p string) (s seen, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return s, err
	}
	b := make([]byte, 64)
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return s, err
	}
	defer unix.Close(fd)
	if n, err := unix.Read(fd, b); err != nil || !bytes.HasPrefix(b[:n], []byte(DecoyText)) {
		return s, errors.Join(errNothing, err)
	}
	return seen{st.Dev, st.Ino, int(st.Nlink), st.Mode, st.Uid, st.Size, st.Mtim, st.Ctim}, nil
}

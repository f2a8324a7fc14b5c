//go:build linux && (amd64 || arm64)

package escape

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ownKernel selects sandboxes with their own kernel.
func ownKernel(f Facts) bool { return f.Own }

// limited selects sandboxes with a limit of tasks.
func limited(f Facts) bool { return f.Tasks > 0 }

// innerBinary is the path of PID 1's program in tier gvisor (plan.InnerPath).
const innerBinary = "/run/coppice-init"

// rootAttacks are attempts on the integrity of a sandbox, in every tier.
var rootAttacks = []Attack{
	{Name: "race-the-root", None: Files,
		What: "have a path lead out while it is walked: directories that become symbolic links, and that are moved while " +
			"another process climbs out of them by ..", Run: raceTheRoot},
	{Name: "exhaust-tasks", None: Kernel, What: "make more processes than there may be", Applies: limited,
		Run: exhaustTasks},
	{Name: "signal-by-others", None: Kernel,
		What: "have the kernel kill or stop init: as the owner of a file, and as the parent of what ends with another signal",
		Run: func(f Facts) error {
			for _, sig := range []unix.Signal{unix.SIGKILL, unix.SIGSTOP, unix.SIGTERM, unix.SIGSEGV} {
				_ = ownSignal(sig)
				_ = bequeathSignal(sig)
			}
			return initLives()
		}},
}

// ownAttacks are attempts on the host behind a sandbox's own kernel.
var ownAttacks = []Attack{
	{Name: "host-words", None: Nothing, What: "find the host's boot, kernel, namespaces and paths in /proc and /sys",
		Applies: ownKernel, Run: findWords},
	{Name: "conductors-root", None: Files,
		What: "see or reach what the conductor has in its root beside the sandbox's files: gVisor's control socket, the " +
			"binary, the other view", Applies: ownKernel, Run: func(f Facts) error {
			control := "runsc-coppice.sock"
			climb := strings.Repeat("/..", 16)
			return any1(map[string]func() error{
				"see": func() error {
					return each([]string{"/state", "/box", "/view", climb + "/state", "/proc/1/root/state", "/proc/1/cwd/../state"},
						func(p string) error { return unix.Lstat(p, new(unix.Stat_t)) })
				},
				"control": func() error {
					return each(
						[]string{"/state/" + control, climb + "/state/" + control, "/proc/1/root/state/" + control, "/run/" + control,
							"/var/run/" + control, "/tmp/" + control,
							"@" + control, "@runsc-sandbox.coppice", "@coppice"}, connectUnix)
				},
			})
		}},
	{Name: "shown-sockets", None: Files,
		What: "connect to a socket and write to a pipe of the host's that lie in a mount of its", Applies: ownKernel,
		Run: func(f Facts) error {
			return any1(map[string]func() error{
				"socket": func() error { return connectUnix(f.Shown[0]) },
				"linked": func() error {
					link := filepath.Join(os.TempDir(), "escape-socket")
					_ = os.Remove(link)
					if err := os.Symlink(f.Shown[0], link); err != nil {
						return err
					}
					return connectUnix(link)
				},
				"opened": func() error {
					fd, err := unix.Open(f.Shown[0], unix.O_PATH, 0)
					if err != nil {
						return err
					}
					return connectUnix("/proc/self/fd/" + strconv.Itoa(fd))
				},
				"write": func() error { return appended(f.Shown[1], unix.O_WRONLY|unix.O_NONBLOCK) },
				"both":  func() error { return appended(f.Shown[1], unix.O_RDWR|unix.O_NONBLOCK) },
				"read": func() error {
					fd, err := unix.Open(f.Shown[1], unix.O_RDONLY|unix.O_NONBLOCK, 0)
					if err != nil {
						return err
					}
					return unix.Close(fd)
				},
			})
		}},
	{Name: "speak-for-init", None: Kernel,
		What: "write what the conductor must not believe into init's pipes: by its descriptors in /proc, its memory, its " +
			"threads, tracing, and pidfds", Applies: ownKernel, Run: speakForInit},
	{Name: "change-init", None: Files,
		What: "write to the program that init is, replace or remove it, and take its mount off", Applies: ownKernel,
		Run: func(f Facts) error {
			before, err := beginning(innerBinary)
			if err != nil {
				return err
			}
			ways, err := replacements(innerBinary, "/run")
			if err != nil {
				return err
			}
			delete(ways, "recursive") // commands may remove that
			for name, way := range writes(innerBinary, "/run") {
				ways[name] = way
			}
			for _, p := range []string{"/proc/1/exe", "/proc/1/root" + innerBinary, "/proc/1/map_files"} {
				ways["by "+p] = func() error { return appended(p, unix.O_WRONLY) }
			}
			was, _ := stat(innerBinary)
			return any1(ways2(ways, func(err error) error {
				now, rerr := beginning(innerBinary)
				is, serr := stat(innerBinary)
				if rerr != nil || serr != nil || !bytes.Equal(now, before) || is != was {
					tell(os.Stdout, "it is", is, rerr, serr, "and was", was)
					return nil
				}
				return f.real(err)
			}))
		}},
}

// beginning returns the first page of a file.
func beginning(p string) ([]byte, error) {
	file, err := os.Open(p)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b := make([]byte, 4096)
	_, err = io.ReadFull(file, b)
	return b, err
}

// initLives returns an error if init still reaps orphans, and nil if it has exited or is stopped. Signals that were
// sent to init before take effect first.
func initLives() error {
	out, err := (&exec.Cmd{Path: "/bin/sh", Args: []string{"sh", "-c", "true & echo $!"}}).Output()
	pid, perr := strconv.Atoi(strings.TrimSpace(string(out)))
	if err := errors.Join(err, perr); err != nil {
		tell(os.Stdout, "no orphan could be made:", err)
		return nil
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if err := unix.Kill(pid, 0); err == unix.ESRCH {
			return errors.New("init lives")
		}
	}
	return nil
}

// Ways to set the owner of a socket: with F_SETOWN, and with ioctl (asm-generic/sockios.h).
const (
	setOwn, setOwnGroup  int32 = -1, -2
	fioSetOwn, siocSPGrp int32 = 0x8901, 0x8902
)

// ownSignal makes init, and each of its threads, the owner of a socket for which the kernel sends a signal (F_SETSIG).
func ownSignal(sig unix.Signal) error {
	owners := []int{1}
	tasks, _ := filepath.Glob("/proc/1/task/*")
	for _, t := range tasks {
		if n, err := strconv.Atoi(filepath.Base(t)); err == nil {
			owners = append(owners, n)
		}
	}
	return each(owners, func(pid int) error {
		// 0, 1 and 2 are F_SETOWN_EX with a thread, a process and a group.
		return each([]int32{setOwn, setOwnGroup, fioSetOwn, siocSPGrp, 0, 1, 2}, func(way int32) error {
			p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				return err
			}
			defer unix.Close(p[0])
			defer unix.Close(p[1])
			switch way {
			case setOwn:
				_, err = unix.FcntlInt(uintptr(p[0]), unix.F_SETOWN, pid)
			case setOwnGroup:
				_, err = unix.FcntlInt(uintptr(p[0]), unix.F_SETOWN, -pid)
			case fioSetOwn, siocSPGrp:
				err = unix.IoctlSetPointerInt(p[0], uint(way), pid)
			default:
				owner := [2]int32{way, int32(pid)}
				err = sys(unix.SYS_FCNTL, uintptr(p[0]), unix.F_SETOWN_EX, ptr(&owner))
			}
			if err == nil {
				_, err = unix.FcntlInt(uintptr(p[0]), unix.F_SETSIG, int(sig))
			}
			if err == nil {
				_, err = unix.FcntlInt(uintptr(p[0]), unix.F_SETFL, unix.O_ASYNC|unix.O_NONBLOCK)
			}
			if err == nil {
				_, err = unix.Write(p[1], []byte("x"))
			}
			return err
		})
	})
}

// bequeathSignal creates children that are reparented to init, and whose exit signals their parent.
func bequeathSignal(sig unix.Signal) error {
	return each([]uintptr{unix.CLONE_PARENT, unix.CLONE_PARENT | unix.CLONE_VFORK, 0}, func(flags uintptr) error {
		pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, flags|uintptr(sig), 0, 0, 0, 0, 0)
		if e != 0 {
			return e
		}
		if pid == 0 {
			if flags == 0 { // an orphan: its parent exits first
				_, _, _ = unix.RawSyscall6(unix.SYS_CLONE, uintptr(sig), 0, 0, 0, 0, 0)
			}
			for {
				_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
		}
		if flags == 0 {
			_, _ = unix.Wait4(int(pid), nil, unix.WALL, nil)
		}
		return nil
	})
}

// speakForInit tries to open the pipes through which PID 1 communicates with the conductor.
func speakForInit(f Facts) error {
	// A message of init that a command has exited, and a descriptor that comes with it.
	body := append([]byte{'x', 1, 0, 0, 0, 2, 'o'}, `{"pid":1,"code":0}`...)
	frame := append([]byte{'m', 0, 0, 0, 0, 0, 0, 0}, binary.BigEndian.AppendUint32(nil, uint32(len(body)))...)
	frame = append(frame, body...)
	places := []string{"/proc/1", "/proc/self/../1", "/proc/thread-self/../../../1"}
	threads := []int{1}
	tasks, _ := filepath.Glob("/proc/1/task/*")
	for _, t := range tasks {
		n, err := strconv.Atoi(filepath.Base(t))
		if err != nil {
			continue
		}
		threads = append(threads, n)
		places = append(places, t, "/proc/"+filepath.Base(t))
	}
	err := each(places, func(at string) error {
		if w, err := os.OpenFile(at+"/mem", os.O_RDWR, 0); err == nil {
			defer w.Close()
			if _, err := w.ReadAt(make([]byte, 8), 0x401000); err == nil {
				return nil
			}
		}
		fds := make([]int, 32)
		for i := range fds {
			fds[i] = i
		}
		return each(fds, func(n int) error {
			p := at + "/fd/" + strconv.Itoa(n)
			for _, flags := range []int{unix.O_WRONLY, unix.O_RDONLY, unix.O_RDWR, unix.O_PATH} {
				fd, err := unix.Open(p, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
				if err != nil {
					continue
				}
				_, _ = unix.Write(fd, frame)
				return nil
			}
			_, err := os.Readlink(p)
			return err
		})
	})
	if err == nil {
		return nil
	}
	return errors.Join(err, each(threads, func(tid int) error {
		if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, 0, 0, 0); e == 0 {
			return nil
		}
		if _, err := unix.ProcessVMWritev(tid, []unix.Iovec{{Base: &empty[0], Len: 1}},
			[]unix.RemoteIovec{{Base: 0x401000, Len: 1}}, 0); err == nil {
			return nil
		}
		return each([]int{0, unix.PIDFD_THREAD}, func(flags int) error {
			p, err := unix.PidfdOpen(tid, flags)
			if err != nil {
				return err
			}
			defer unix.Close(p)
			return each([]int{0, 1, 2, 3, 4, 5, 6, 7, 8}, func(fd int) error { _, err := unix.PidfdGetfd(p, fd, 0); return err })
		})
	}))
}

// findWords searches for words that identify the host in everything that the kernel reports about itself and about
// processes, except in the attacker's arguments, which contain the words.
func findWords(f Facts) error {
	for _, root := range []string{"/proc", "/proc/self/", "/proc/1/", "/sys"} {
		err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return fs.SkipDir // an unreadable directory
			}
			name := d.Name()
			_, other := strconv.Atoi(name)
			switch {
			case d.IsDir() && p != root &&
				(other == nil || slices.Contains([]string{"fd", "fdinfo", "task", "root", "cwd"}, name)):
				return fs.SkipDir
			case d.Type()&fs.ModeSymlink != 0:
				to, err := os.Readlink(p)
				if err == nil && f.tells(to) {
					return fmt.Errorf("%s leads to %s", p, to)
				}
				return nil
			case d.IsDir() || !d.Type().IsRegular() || slices.Contains([]string{"cmdline", "environ", "mem"}, name):
				return nil
			}
			if told := f.readFor(p); told != "" {
				return fmt.Errorf("%s says %s", p, told)
			}
			return nil
		})
		if err != nil {
			tell(os.Stdout, err)
			return nil
		}
	}
	return errNothing
}

// tells reports whether s contains a word that identifies the host.
func (f Facts) tells(s string) bool {
	return slices.ContainsFunc(f.Words, func(w string) bool { return strings.Contains(s, w) })
}

// readFor returns the first line of a file that contains such a word.
func (f Facts) readFor(p string) string {
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	b := make([]byte, 256<<10)
	n, _ := unix.Read(fd, b)
	for line := range strings.Lines(string(b[:max(n, 0)])) {
		if f.tells(line) {
			return line
		}
	}
	return ""
}

// raceTheRoot walks paths while another process changes them, in files that outlive the processes or, if the user may
// not write those, in memory.
func raceTheRoot(f Facts) error {
	dir, err := os.MkdirTemp("/srv", "race")
	if err != nil {
		dir, err = os.MkdirTemp("", "race")
	}
	if err != nil {
		return err
	}
	path := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	climb := strings.Repeat("../", 24)
	if err := errors.Join(os.MkdirAll(path("plain"), 0o777), os.Symlink("/"+climb, path("link")),
		os.MkdirAll(path("in/deep/er"), 0o777)); err != nil {
		return err
	}
	over := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-over:
				return
			default:
			}
			_ = os.Rename(path("plain"), path("turn"))
			_ = os.Rename(path("turn"), path("plain"))
			_ = os.Rename(path("link"), path("turn"))
			_ = os.Rename(path("turn"), path("link"))
			_ = os.Rename(path("in/deep"), path("deep"))
			_ = os.Rename(path("deep"), path("in/deep"))
		}
	}()
	defer func() { close(over); <-done }()
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		if err := f.walkOut(path("turn"), path("in/deep/er"), climb); err == nil {
			return nil
		}
	}
	return errNothing
}

// walkOut tries to read each file through a path that turns into a link, and from a directory that is moved.
func (f Facts) walkOut(turn, deep, climb string) error {
	fd, err := unix.Open(deep, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
	}
	return each(f.Files, func(p string) error {
		if f.read(turn+p) == nil || f.read(turn+"/"+climb+p) == nil {
			return nil
		}
		if err != nil {
			return err
		}
		return f.read("/proc/self/fd/" + strconv.Itoa(fd) + "/" + climb + p)
	})
}

// exhaustTasks creates processes until no more can be created, and ends them. A shell does that, because a Go process
// takes fifty milliseconds to fork in tier gvisor.
func exhaustTasks(f Facts) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	script := fmt.Sprintf("i=0; while [ $i -le %d ]; do (read x) <&3 & i=$((i+1)); done", f.Tasks)
	made := &exec.Cmd{Path: "/bin/sh", Args: []string{"sh", "-c", script}, ExtraFiles: []*os.File{r}, Stdout: os.Stdout,
		Stderr: os.Stdout}
	err = errors.Join(made.Start(), r.Close())
	if err == nil {
		err = made.Wait()
	}
	return errors.Join(err, w.Close()) // the processes exit when the pipe is closed
}

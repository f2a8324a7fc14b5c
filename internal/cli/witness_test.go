//go:build linux

package cli_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootfs/rootfstest"
)

// witness is a program that runs in a sandbox: "witness make DIR" fills DIR with entries of every kind, "witness mess
// DIR SEED" changes them in every way, "witness dump DIR" lists them, and "witness hold DIR" keeps some of them in
// use in every way until DIR/go exists, and then prints their state.
func witness() {
	if err := witnessed(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "witness:", err)
		os.Exit(1)
	}
}

func witnessed(what, dir string) error {
	switch what {
	case "make":
		return makeOdd(dir)
	case "mess":
		seed := binary.BigEndian.Uint64([]byte("seed" + fmt.Sprintf("%04s", os.Args[3])))
		return mess(dir, rand.New(rand.NewPCG(seed, 3)))
	case "dump":
		return dumpOdd(dir, os.Stdout)
	case "hold":
		return hold(dir)
	case "wait": // a program in execution
		return waitFor(dir)
	}
	return fmt.Errorf("what is %q?", what)
}

func makeOdd(dir string) error {
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "odd"), 0o755),
		os.MkdirAll(filepath.Join(dir, "cwd/sub"), 0o755)); err != nil {
		return err
	}
	for seed := range uint64(4) {
		sub := filepath.Join(dir, "odd", fmt.Sprint(seed))
		if err := os.Mkdir(sub, 0o755); err != nil {
			return err
		}
		if err := rootfstest.GenLayer(sub, "", rand.New(rand.NewPCG(seed, 5))); err != nil {
			return err
		}
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "log"), []byte("begun\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "read"), []byte("0123456789"), 0o644),
		os.WriteFile(filepath.Join(dir, "library"), bytes.Repeat([]byte("old "), 5000), 0o755),
		os.WriteFile(filepath.Join(dir, "program"), self, 0o755),
		os.WriteFile(filepath.Join(dir, "cwd/file"), []byte("here\n"), 0o600),
		os.Mkdir(filepath.Join(dir, "listed"), 0o2775),
		unix.Setxattr(filepath.Join(dir, "listed"), "system.posix_acl_default", acl(), 0),
		os.WriteFile(filepath.Join(dir, "listed/f"), nil, 0o640),
		unix.Setxattr(filepath.Join(dir, "cwd/file"), "system.posix_acl_access", acl(), 0),
		unix.Setxattr(filepath.Join(dir, "cwd/file"), "user.overlay.opaque", []byte("y"), 0),
	)
}

// acl returns an access control list with an entry for one more user, root.
func acl() []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range [][3]uint32{{0x01, 6, ^uint32(0)}, {0x02, 5, 0}, {0x04, 4, ^uint32(0)}, {0x10, 7, ^uint32(0)},
		{0x20, 0, ^uint32(0)}} {
		b = binary.LittleEndian.AppendUint16(b, uint16(e[0]))
		b = binary.LittleEndian.AppendUint16(b, uint16(e[1]))
		b = binary.LittleEndian.AppendUint32(b, e[2])
	}
	return b
}

// mess replaces, removes, adds and changes about half of the entries.
func mess(dir string, r *rand.Rand) error {
	fresh := filepath.Join(dir, "fresh")
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return err
	}
	if err := rootfstest.GenLayer(fresh, "", r); err != nil {
		return err
	}
	tops, err := os.ReadDir(filepath.Join(dir, "odd"))
	if err != nil {
		return err
	}
	for _, top := range tops {
		at := filepath.Join(dir, "odd", top.Name())
		news, err := os.ReadDir(fresh)
		if err != nil {
			return err
		}
		for _, n := range news {
			if to := filepath.Join(at, n.Name()); r.IntN(3) == 0 {
				if err := errors.Join(os.RemoveAll(to), os.Rename(filepath.Join(fresh, n.Name()), to)); err != nil {
					return err
				}
			}
		}
		if err := filepath.WalkDir(at, func(p string, d fs.DirEntry, err error) error {
			if err != nil || r.IntN(3) > 0 {
				return err
			}
			return messOne(p, d, r)
		}); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	program := filepath.Join(dir, "program")
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "log"), []byte("nothing\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "read"), []byte("abcdefghijkl"), 0o644),
		os.WriteFile(filepath.Join(dir, "library.new"), bytes.Repeat([]byte("new "), 4000), 0o644),
		os.Rename(filepath.Join(dir, "library.new"), filepath.Join(dir, "library")),
		os.Remove(program), os.Symlink("/nowhere", program),
		os.RemoveAll(filepath.Join(dir, "cwd/sub")), os.WriteFile(filepath.Join(dir, "cwd/sub"), nil, 0o644),
		os.WriteFile(filepath.Join(dir, "cwd/other"), []byte("x"), 0o644),
		unix.Removexattr(filepath.Join(dir, "cwd/file"), "system.posix_acl_access"),
		unix.Removexattr(filepath.Join(dir, "cwd/file"), "user.overlay.opaque"),
		os.Remove(filepath.Join(dir, "listed/f")),
	)
}

func messOne(p string, d fs.DirEntry, r *rand.Rand) error {
	if d.Type()&fs.ModeSymlink != 0 {
		return unix.Lchown(p, 0, 0)
	}
	_ = os.Chown(p, r.IntN(3), r.IntN(3)) // fails for an unprivileged user, who has one ID only
	if d.Type().IsRegular() && r.IntN(2) == 0 {
		f, err := os.OpenFile(p, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString("more")
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	if !d.Type().IsRegular() && !d.IsDir() {
		return os.Chmod(p, 0o640)
	}
	return errors.Join(unix.Setxattr(p, "user.mess", []byte{byte(r.IntN(256))}, 0),
		os.Chmod(p, os.FileMode(0o700|r.IntN(64))))
}

func dumpOdd(dir string, out io.Writer) error {
	if err := rootfstest.Dump(dir, out); err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		for _, key := range []string{"system.posix_acl_access", "system.posix_acl_default", "user.overlay.opaque"} {
			b := make([]byte, 256)
			if n, err := unix.Lgetxattr(p, key, b); err == nil {
				fmt.Fprintf(out, "%q %s %x\n", p, key, b[:n])
			}
		}
		return nil
	})
}

func waitFor(dir string) error {
	for {
		if _, err := os.Lstat(filepath.Join(dir, "go")); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// hold starts with the files as mess left them.
func hold(dir string) error {
	if err := os.Chdir(filepath.Join(dir, "cwd")); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	read, err := os.Open(filepath.Join(dir, "read"))
	if err != nil {
		return err
	}
	var four [4]byte
	if _, err := io.ReadFull(read, four[:]); err != nil {
		return err
	}
	lib, err := os.Open(filepath.Join(dir, "library"))
	if err != nil {
		return err
	}
	mapped, err := unix.Mmap(int(lib.Fd()), 0, 16000, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		// If no executable mapping is allowed, a readable one will do.
		mapped, err = unix.Mmap(int(lib.Fd()), 0, 16000, unix.PROT_READ, unix.MAP_PRIVATE)
	}
	if err != nil {
		return err
	}
	// The rewind changes the file of a running program.
	program := filepath.Join(dir, "running")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	if err := os.WriteFile(program, append(self, "changed"...), 0o755); err != nil {
		return err
	}
	child := exec.Command(program, "wait", dir)
	child.Args[0] = "witness"
	if err := child.Start(); err != nil {
		return err
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	if _, err := unix.InotifyAddWatch(watch, ".", unix.IN_ALL_EVENTS); err != nil {
		return err
	}
	fmt.Println("holding")
	if err := waitFor(dir); err != nil {
		return err
	}
	return told(dir, log, read, mapped, child, watch)
}

// told prints the state of what hold uses.
func told(dir string, log, read *os.File, mapped []byte, child *exec.Cmd, watch int) error {
	if _, err := log.WriteString("more\n"); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	fmt.Printf("log: %q\n", text)
	rest, err := io.ReadAll(read)
	if err != nil {
		return err
	}
	fmt.Printf("read: %q\n", rest)
	fmt.Println("mapped:", string(mapped[:4]), bytes.Count(mapped, []byte("new ")))
	lib, err := os.ReadFile(filepath.Join(dir, "library"))
	if err != nil {
		return err
	}
	fmt.Println("library:", string(lib[:4]), len(lib))
	fmt.Println("program:", child.Wait())
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	_, absent := os.Lstat("other")
	st, err := os.Lstat("sub")
	if err != nil {
		return err
	}
	fmt.Println("in:", wd, errors.Is(absent, fs.ErrNotExist), st.IsDir(), os.WriteFile("written", []byte("x"), 0o644))
	buf := make([]byte, 64<<10)
	n, err := unix.Read(watch, buf)
	if err != nil {
		return err
	}
	fmt.Println("watch:", strings.Contains(string(buf[:n]), "other"), strings.Contains(string(buf[:n]), "written"))
	return nil
}

//go:build linux

package cli_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// soaker is the program that changes files in a sandbox, in every way. A tape beside its tree records its steps:
// pairs of a seed and of the number of steps with it, of eight bytes each. Each step is one system call, and the
// number is written after it. So a snapshot has the tape and the tree, and the tree equals the model, or is one step
// ahead.
type soaker struct {
	tree string
	tape *os.File
	runs []reel
	m    *model

	files map[int]*os.File // open files, by the IDs of the model's inodes
	maps  map[int][]byte   // mapped files, by the IDs
}

// reel is a part of the tape.
type reel struct{ seed, steps uint64 }

const (
	soakTree = "/work"
	soakTape = "/state/tape"
	// soakError is the file with the error of a writer.
	soakError = "/state/error"
	// soakWrong is the exit code for a tree that differs from the model.
	soakWrong = 3
)

// soak is the main function in a sandbox: "soak write|check [hard] [attrs]".
func soak(args []string) int {
	s := &soaker{tree: soakTree, files: map[int]*os.File{}, maps: map[int][]byte{}}
	can := powers{hard: slices.Contains(args, "hard"), attrs: slices.Contains(args, "attrs")}
	syscall.Umask(0)
	err := s.open(can)
	if err == nil {
		err = s.check()
	}
	if err == nil && args[1] == "write" {
		err = s.write()
	}
	if err != nil {
		fmt.Println(err)
		_ = os.WriteFile(soakError, []byte(err.Error()), 0o644) // no client may be attached
		return soakWrong
	}
	fmt.Println(s.runs)
	return 0
}

// open reads the tape, and applies its steps to the model.
func (s *soaker) open(can powers) error {
	s.m = newModel(can)
	b, err := os.ReadFile(soakTape)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(b)%16 != 0 {
		return fmt.Errorf("the tape has %d bytes", len(b))
	}
	for ; len(b) > 0; b = b[16:] {
		r := reel{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
		for i := range r.steps {
			s.m.apply(s.m.next(r.seed, int(i)))
		}
		s.runs = append(s.runs, r)
	}
	return nil
}

// check compares the tree with the model, and with the model one step later.
func (s *soaker) check() error {
	now, err := s.m.differ(s.tree, nil)
	if err != nil || now == "" {
		return err
	}
	then := "no step was started"
	if len(s.runs) > 0 {
		next := s.upcoming()
		if slices.Contains([]string{"append", "write", "map", "punch"}, next.op) {
			if then, err = s.m.differ(s.tree, &next); err != nil || then == "" {
				return err
			}
		}
		ahead := newModel(s.m.can)
		for i, r := range s.runs {
			if i == len(s.runs)-1 {
				r.steps++
			}
			for j := range r.steps {
				ahead.apply(ahead.next(r.seed, int(j)))
			}
		}
		if then, err = ahead.differ(s.tree, nil); err != nil || then == "" {
			return err
		}
		then = fmt.Sprintf("%s %q to %q, at %d, %d bytes:\n%s", next.op, next.path, next.to, next.off, len(next.data), then)
	}
	return fmt.Errorf("the tree differs from the model after %v: %sand after %s", s.runs, now, then)
}

func (s *soaker) upcoming() step {
	r := s.runs[len(s.runs)-1]
	return s.m.next(r.seed, int(r.steps))
}

// differ describes how a tree differs from the model. partly is a step that may have been interrupted after any byte
// that it writes.
func (m *model) differ(root string, partly *step) (string, error) {
	var b strings.Builder
	seen := map[string]bool{}
	inodes := map[int]uint64{}
	err := filepath.WalkDir(root, func(p string, _ fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		p = p[len(root)+1:]
		n := m.nodes[p]
		if n == nil {
			fmt.Fprintf(&b, "%q is unexpected\n", p)
			return nil
		}
		seen[p] = true
		var part *step
		if partly != nil && partly.node == n {
			part = partly
		}
		why, ino, err := n.differs(filepath.Join(root, p), part, m.can)
		if why != "" {
			fmt.Fprintf(&b, "%q: %s\n", p, why)
		}
		if m.can.hard && n.kind == 'f' {
			if before, ok := inodes[n.id]; ok && before != ino {
				fmt.Fprintf(&b, "%q is not a link to the same file\n", p)
			}
			inodes[n.id] = ino
		}
		return err
	})
	for _, p := range m.paths {
		if !seen[p] {
			fmt.Fprintf(&b, "%q is missing\n", p)
		}
	}
	out := b.String()
	if len(out) > 4000 {
		out = out[:4000] + "...\n"
	}
	return out, err
}

func (n *inode) differs(p string, partly *step, can powers) (why string, ino uint64, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return "", 0, err
	}
	kind := map[uint32]byte{unix.S_IFDIR: 'd', unix.S_IFREG: 'f', unix.S_IFLNK: 'l',
		unix.S_IFIFO: 'p'}[st.Mode&unix.S_IFMT]
	if kind != n.kind {
		return fmt.Sprintf("type is %q, want %q", kind, n.kind), 0, nil
	}
	var data []byte
	switch kind {
	case 'l':
		to, err := os.Readlink(p)
		if err != nil {
			return "", 0, err
		}
		data = []byte(to)
	case 'f':
		if data, err = os.ReadFile(p); err != nil {
			return "", 0, err
		}
	}
	switch {
	case kind != 'l' && st.Mode&0o7777 != n.mode:
		return fmt.Sprintf("mode is %o, want %o", st.Mode&0o7777, n.mode), 0, nil
	case partly != nil && between(data, n.data, *partly):
	case !bytes.Equal(data, n.data):
		return unequal(data, n.data), 0, nil
	case n.mtime != 0 && n.mtime != st.Mtim.Sec:
		return fmt.Sprintf("time is %d, want %d", st.Mtim.Sec, n.mtime), 0, nil
	}
	if can.attrs && (kind == 'f' || kind == 'd') {
		got, err := attrsOf(p)
		if err != nil {
			return "", 0, err
		}
		if !maps.Equal(got, n.attrs) {
			return fmt.Sprintf("attributes are %q, want %q", got, n.attrs), 0, nil
		}
	}
	return "", st.Ino, nil
}

// between reports whether got is the content of a file that was data, after some number of bytes of a step.
func between(got, data []byte, s step) bool {
	k := 0
	for k < len(s.data) && int(s.off)+k < len(got) && got[int(s.off)+k] == s.data[k] {
		k++
	}
	for ; k >= 0; k-- {
		if bytes.Equal(got, written(slices.Clone(data), s, k)) {
			return true
		}
		if int(s.off)+k < len(data) && got[min(int(s.off)+k, len(got)-1)] != data[int(s.off)+k] {
			break // what follows is neither old nor new content
		}
	}
	return false
}

func unequal(got, want []byte) string {
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	return fmt.Sprintf("got %d bytes, want %d; the first difference is at %d: %.8q, want %.8q", len(got), len(want), i,
		got[i:], want[i:])
}

func attrsOf(p string) (map[string]string, error) {
	b := make([]byte, 64<<10)
	n, err := unix.Llistxattr(p, b)
	if err != nil {
		return nil, fmt.Errorf("attributes of %q: %w", p, err)
	}
	got := map[string]string{}
	for key := range strings.SplitSeq(string(b[:n]), "\x00") {
		if !strings.HasPrefix(key, "user.") {
			continue
		}
		v := make([]byte, 64<<10)
		k, err := unix.Lgetxattr(p, key, v)
		if err != nil {
			return nil, fmt.Errorf("attribute %s of %q: %w", key, p, err)
		}
		got[key] = string(v[:k])
	}
	return got, nil
}

// write finishes the last step of an earlier writer, and then continues with its own seed until it is killed.
func (s *soaker) write() (err error) {
	if s.tape, err = os.OpenFile(soakTape, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return err
	}
	if len(s.runs) > 0 {
		if err := s.advance(true); err != nil {
			return err
		}
	}
	s.runs = append(s.runs, reel{seed: rand.Uint64()})
	if rand.IntN(4) == 0 {
		signal.Ignore(syscall.SIGTERM)
	}
	if err := s.record(); err != nil {
		return err
	}
	for {
		pause := []time.Duration{0, time.Millisecond, 10 * time.Millisecond}[rand.IntN(3)]
		for range rand.IntN(150) {
			if err := s.advance(false); err != nil {
				return err
			}
			time.Sleep(pause)
		}
		time.Sleep(time.Duration(rand.IntN(4)) * 100 * time.Millisecond)
	}
}

// record writes the last reel to the tape.
func (s *soaker) record() error {
	var b [16]byte
	r := s.runs[len(s.runs)-1]
	binary.LittleEndian.PutUint64(b[:], r.seed)
	binary.LittleEndian.PutUint64(b[8:], r.steps)
	_, err := s.tape.WriteAt(b[:], int64(len(s.runs)-1)*16)
	return err
}

// advance makes one step. again means that an earlier writer may have made the step, or a part of it.
func (s *soaker) advance(again bool) error {
	next := s.upcoming()
	if err := s.do(next, again); err != nil {
		return fmt.Errorf("%v: %s %q to %q: %w", s.runs, next.op, next.path, next.to, err)
	}
	s.m.apply(next)
	s.runs[len(s.runs)-1].steps++
	return s.record()
}

func (s *soaker) do(x step, again bool) error {
	p, to := filepath.Join(s.tree, x.path), filepath.Join(s.tree, x.to)
	made := func(err error, done error) error {
		if again && errors.Is(err, done) {
			return nil
		}
		return err
	}
	switch x.op {
	case "create":
		f, err := os.OpenFile(p, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil {
			s.hold(s.m.made+1, f)
		}
		return made(err, fs.ErrExist)
	case "mkdir":
		return made(unix.Mkdir(p, 0o755), fs.ErrExist)
	case "symlink":
		return made(unix.Symlink(string(x.data), p), fs.ErrExist)
	case "fifo":
		return made(unix.Mkfifo(p, 0o600), fs.ErrExist)
	case "link":
		return made(unix.Link(p, to), fs.ErrExist)
	case "rename":
		return made(unix.Rename(p, to), fs.ErrNotExist)
	case "remove":
		if x.node.kind == 'd' {
			return made(unix.Rmdir(p), fs.ErrNotExist)
		}
		return made(unix.Unlink(p), fs.ErrNotExist)
	case "chmod":
		return unix.Chmod(p, x.mode)
	case "attr":
		return unix.Setxattr(p, x.key, x.data, 0)
	case "noattr":
		return made(unix.Removexattr(p, x.key), unix.ENODATA)
	case "touch":
		ts := []unix.Timespec{{Sec: x.off}, {Sec: x.off}}
		return unix.UtimesNanoAt(unix.AT_FDCWD, p, ts, 0)
	}
	return s.content(p, x, again)
}

// content makes a step that changes the content of a file, through a descriptor or a mapping that may have been open
// for long.
func (s *soaker) content(p string, x step, again bool) error {
	f := s.files[x.node.id]
	if f == nil {
		var err error
		if f, err = os.OpenFile(p, os.O_RDWR, 0); err != nil {
			return err
		}
		s.hold(x.node.id, f)
	}
	size := len(x.node.data)
	switch x.op {
	case "append":
		if again {
			_, err := f.WriteAt(x.data, x.off)
			return err
		}
		_, err := f.Seek(0, 2)
		if err == nil {
			_, err = f.Write(x.data)
		}
		return err
	case "write":
		_, err := f.WriteAt(x.data, x.off)
		return err
	case "truncate":
		s.unmap(x.node.id)
		return f.Truncate(x.off)
	case "punch":
		return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, x.off, int64(len(x.data)))
	case "map":
		m := s.maps[x.node.id]
		if len(m) < size {
			s.unmap(x.node.id)
			var err error
			if m, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
				return err
			}
			for id := range s.maps {
				if len(s.maps) > 1 {
					s.unmap(id)
				}
			}
			s.maps[x.node.id] = m
		}
		for i, c := range x.data { // in order, one byte at a time
			m[int(x.off)+i] = c
		}
		return nil
	}
	return fmt.Errorf("unknown step %q", x.op)
}

// hold keeps a descriptor open, and closes others if there are too many.
func (s *soaker) hold(id int, f *os.File) {
	for other := range s.files {
		if len(s.files) > 5 {
			s.files[other].Close()
			delete(s.files, other)
		}
	}
	s.files[id] = f
}

func (s *soaker) unmap(id int) {
	if m := s.maps[id]; m != nil {
		_ = unix.Munmap(m)
		delete(s.maps, id)
	}
}

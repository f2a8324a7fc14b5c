//go:build linux

package cli_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// needle is a text to search for, in the forms in which a program may keep it.
type needle struct {
	text  string
	forms map[string][]byte // by name
}

// newNeedle returns the forms of a text of ASCII letters and digits.
func newNeedle(text string) needle {
	n := needle{text, map[string][]byte{"plain": []byte(text)}}
	for shift := range 3 {
		// The first and the last characters also depend on what surrounds the text.
		whole := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), text...))
		n.forms[fmt.Sprint("base64 at ", shift)] = []byte(whole[(8*shift+5)/6 : 8*(shift+len(text))/6])
	}
	low := hex.EncodeToString([]byte(text))
	n.forms["hex"], n.forms["HEX"] = []byte(low), []byte(strings.ToUpper(low))
	var percent, escapes, narrow, wide strings.Builder
	for _, c := range []byte(text) {
		fmt.Fprintf(&percent, "%%%02X", c)
		fmt.Fprintf(&escapes, `\u%04x`, c)
		narrow.Write([]byte{c, 0})
		wide.Write([]byte{0, c})
	}
	n.forms["percent"], n.forms["JSON"] = []byte(percent.String()), []byte(escapes.String())
	n.forms["UTF-16LE"], n.forms["UTF-16BE"] = []byte(narrow.String()), []byte(wide.String())
	return n
}

// in returns the name of a form of n that b has, or "".
func (n needle) in(b []byte) string {
	for name, form := range n.forms {
		if bytes.Contains(b, form) {
			return name
		}
	}
	return ""
}

// most is the length of the longest form.
func (n needle) most() (length int) {
	for _, form := range n.forms {
		length = max(length, len(form))
	}
	return length
}

// inFiles calls found for each regular file below dir that has n, with the name of a form.
func (n needle) inFiles(t *testing.T, dir string, found func(path, form string)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var b []byte
			if b, err = os.ReadFile(path); err == nil {
				if form := n.in(b); form != "" {
					found(path, form)
				}
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		return err
	})
	if err != nil {
		t.Errorf("search %s: %v", dir, err)
	}
}

// inProcess returns a form of n that a process has in its memory, its arguments or its environment, or "". A process
// that has exited has nothing.
func (n needle) inProcess(pid int) (form string, err error) {
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return "", gone(err)
	}
	defer mem.Close()
	resident, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return "", gone(err)
	}
	defer resident.Close()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return "", gone(err)
	}
	for line := range strings.Lines(string(maps)) {
		var first, last int64
		var modes string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &first, &last, &modes); err != nil {
			continue // such as that of vsyscall, which is above all others
		}
		if modes[0] != 'r' || strings.Contains(line, "[vvar") {
			continue
		}
		if form, err = n.inRange(mem, resident, first, last); form != "" || err != nil {
			return form, gone(err)
		}
	}
	for memory := range sharedMemory(pid) {
		form, err = n.inSparse(memory)
		memory.Close()
		if form != "" || err != nil {
			return form, err
		}
	}
	return "", nil
}

// gone returns err unless it says that the process has exited.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// inRange searches the pages of a mapping that are in memory or swapped.
func (n needle) inRange(mem, resident *os.File, first, last int64) (string, error) {
	page, piece := int64(os.Getpagesize()), int64(1<<24)
	for from := first; from < last; from += piece {
		pages := min(piece, last-from) / page
		entries := make([]byte, 8*pages)
		if _, err := resident.ReadAt(entries, from/page*8); err != nil {
			return "", gone(ended(err))
		}
		for i := int64(0); i < pages; i++ {
			begin := i
			for i < pages && binary.NativeEndian.Uint64(entries[8*i:])>>62 != 0 {
				i++
			}
			if i == begin {
				continue
			}
			at := from + begin*page
			if begin == 0 && from > first { // a text may begin in the piece before
				at -= int64(n.most())
			}
			b := make([]byte, from+i*page-at)
			k, err := mem.ReadAt(b, at)
			if form := n.in(b[:k]); form != "" {
				return form, nil
			}
			if err != nil && !errors.Is(err, unix.EIO) { // a device's
				return "", gone(ended(err))
			}
		}
	}
	return "", nil
}

// ended returns nil for the end of the memory of a process that exits.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// sharedMemory yields the memory files that a process has open, as that of gVisor's guest.
func sharedMemory(pid int) func(func(*os.File) bool) {
	return func(yield func(*os.File) bool) {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		all, _ := os.ReadDir(dir)
		for _, e := range all {
			path := filepath.Join(dir, e.Name())
			if to, err := os.Readlink(path); err != nil || !strings.HasPrefix(to, "/memfd:") {
				continue
			}
			if f, err := os.Open(path); err == nil && !yield(f) {
				return
			}
		}
	}
}

// inSparse searches what a file has other than holes.
func (n needle) inSparse(f *os.File) (string, error) {
	for at := int64(0); ; {
		begin, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		if at, err = unix.Seek(int(f.Fd()), begin, unix.SEEK_HOLE); err != nil {
			return "", err
		}
		b := make([]byte, at-begin)
		if _, err := f.ReadAt(b, begin); err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		if form := n.in(b); form != "" {
			return form, nil
		}
	}
}

// process is one of a home.
type process struct {
	pid  int
	name string // its first argument
}

// processes returns the processes of the home except the broker and clients: the daemon, the keepers of the sandboxes
// with the given IDs, and everything that descends from them.
func processes(daemon int, sandboxes map[string]bool) (all []process) {
	parents, names := map[int]int{}, map[int]string{}
	roots := map[int]bool{daemon: true}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		_, rest, _ := strings.Cut(string(stat[max(0, bytes.LastIndexByte(stat, ')')):]), " ")
		fields := strings.Fields(rest)
		if len(fields) < 2 || len(args) == 0 { // a zombie has no arguments
			continue
		}
		parents[pid], _ = strconv.Atoi(fields[1])
		words := strings.FieldsFunc(string(args), func(r rune) bool { return r == 0 || r == ' ' })
		names[pid] = words[0]
		if words[0] == "coppice-keeper" && len(words) > 1 && sandboxes[words[1]] {
			roots[pid] = true
		}
	}
	for pid := range parents {
		for up := pid; up > 1; up = parents[up] {
			if roots[up] {
				all = append(all, process{pid, names[pid]})
				break
			}
		}
	}
	return all
}

// TestNeedle_FindsForms checks that the search of the tests of secrets finds what it must: in files, and in the memory
// of a process.
func TestNeedle_FindsForms(t *testing.T) {
	t.Parallel()
	const text = "KH5XJ4QZ2M7WTRV3NBSPD6GEYC"
	n := newNeedle(text)
	low := hex.EncodeToString([]byte(text))
	for _, in := range []string{text, low, strings.ToUpper(low),
		base64.StdEncoding.EncodeToString([]byte(text)), base64.URLEncoding.EncodeToString([]byte("u:" + text + "!")),
		base64.StdEncoding.EncodeToString([]byte("x" + text))} {
		if n.in([]byte("before "+in+" after")) == "" {
			t.Errorf("not found: %s", in)
		}
	}
	for name, form := range n.forms {
		if n.in(form) == "" || n.in(form[1:]) != "" {
			t.Errorf("%s: %q", name, form)
		}
		if n.most() < len(form) {
			t.Errorf("%s is longer than %d", name, n.most())
		}
	}
	if form, err := n.inProcess(os.Getpid()); form == "" || err != nil {
		t.Errorf("it is not in the memory of this process: %v", err)
	}
	path := filepath.Join(t.TempDir(), "a/b")
	if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("x"+low), 0o600)); err != nil {
		t.Fatal(err)
	}
	found := 0
	n.inFiles(t, filepath.Dir(path), func(at, form string) {
		if found++; at != path || form != "hex" {
			t.Errorf("%s as %s", at, form)
		}
	})
	if found != 1 {
		t.Errorf("found in %d files", found)
	}
}

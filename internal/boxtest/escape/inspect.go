//go:build linux && (amd64 || arm64)

package escape

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Inspection is the argument of Inspect, which checks a sandbox from inside and reports the protections that do not
// hold.
type Inspection struct {
	Words []string `json:"words"`         // words that no file of the sandbox may contain
	Out   string   `json:"out"`           // a directory of the host that must not be visible
	Own   bool     `json:"own,omitempty"` // the sandbox has its own kernel
	IDs   bool     `json:"ids,omitempty"` // ids inside must differ from those on the host
	Kept  []Kept   `json:"kept,omitempty"`
	Lay   Root     `json:"lay,omitempty"` // root to make afterwards
}

// Kept is a file that the policy protects. It has this text, and cannot be written.
type Kept struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// The argument that makes the attacker's binary inspect, and the last line of its output.
const (
	InspectWord = "inspect"
	Held        = "all walls hold"
)

// Inspect runs the checks, and writes its findings to out.
func Inspect(arg string, out io.Writer) int {
	var in Inspection
	if err := json.Unmarshal([]byte(arg), &in); err != nil {
		tell(out, err)
		return Misused
	}
	broken := in.kernel()
	broken = append(broken, in.mounts()...)
	broken = append(broken, in.files()...)
	broken = append(broken, in.kept()...)
	for _, b := range broken {
		tell(out, "BROKEN:", b)
	}
	if len(in.Lay) > 0 {
		left, err := in.Lay.Lay("/", in.Out)
		for _, l := range left {
			tell(out, "left out:", l)
		}
		if err != nil {
			tell(out, err)
			return Misused
		}
	}
	if len(broken) > 0 {
		return Succeeded
	}
	tell(out, Held)
	return Refused
}

// kernel checks the state of this process as the kernel reports it.
func (in Inspection) kernel() (broken []string) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return []string{err.Error()}
	}
	if !in.Own {
		for _, want := range []string{"NoNewPrivs:\t1\n", "Seccomp:\t2\n"} {
			if !bytes.Contains(status, []byte(want)) {
				broken = append(broken, fmt.Sprintf("/proc/self/status lacks %q", want))
			}
		}
	}
	ids, err := os.ReadFile("/proc/self/uid_map")
	if f := strings.Fields(string(ids)); in.IDs && (err != nil || len(f) < 3 || f[1] == "0") {
		broken = append(broken, fmt.Sprintf("the ids are the host's: %q, %v", ids, err))
	}
	return broken
}

// mounts checks that the mounts of the set-up exist, and cannot be moved.
func (in Inspection) mounts() (broken []string) {
	kinds := map[string]int64{"/proc": unix.PROC_SUPER_MAGIC, "/dev": unix.TMPFS_MAGIC, "/run": unix.TMPFS_MAGIC,
		"/tmp": unix.TMPFS_MAGIC}
	for at, want := range kinds {
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			broken = append(broken, fmt.Sprintf("%s is not a directory: %o, %v", at, st.Mode, err))
		}
		var fsys unix.Statfs_t
		if err := unix.Statfs(at, &fsys); err != nil || fsys.Type != want {
			broken = append(broken, fmt.Sprintf("%s is of another file system: %x, %v", at, fsys.Type, err))
		}
		away := at + "-away"
		if err := os.Rename(at, away); err == nil {
			broken = append(broken, at+" can be moved away")
			_ = os.Rename(away, at)
		}
	}
	var null unix.Stat_t
	if err := unix.Stat("/dev/null", &null); err != nil || null.Mode&unix.S_IFMT != unix.S_IFCHR ||
		null.Rdev != unix.Mkdev(1, 3) {
		broken = append(broken, fmt.Sprintf("/dev/null is mode %o, device %x, %v", null.Mode, null.Rdev, err))
	}
	for _, p := range []string{in.Out, "/.." + in.Out, "/proc/1/root" + in.Out, "/proc/self/root/.." + in.Out} {
		if _, err := os.Lstat(p); err == nil {
			broken = append(broken, "the host's "+p+" is there")
		}
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(info, []byte(in.Out)) {
		broken = append(broken, fmt.Sprintf("mountinfo names the host: %q, %v", info, err))
	}
	return broken
}

// files checks that no file of the sandbox contains a secret of the host. It reads the beginning of each file, and
// never blocks.
func (in Inspection) files() (broken []string) {
	const most = 1 << 20
	err := filepath.WalkDir("/", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // an unreadable file reveals nothing
		case d.IsDir() && (p == "/proc" || p == "/sys" || p == "/lib" || p == "/lib64" || p == "/tools"):
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		if err != nil {
			return nil // an unreadable file reveals nothing
		}
		defer f.Close()
		text, _ := io.ReadAll(io.LimitReader(f, most))
		for _, w := range in.Words {
			if bytes.Contains(text, []byte(w)) {
				broken = append(broken, p+" holds a secret of the host")
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		broken = append(broken, err.Error())
	}
	return broken
}

// kept checks that the policy's files are unchanged, and cannot be written.
func (in Inspection) kept() (broken []string) {
	for _, k := range in.Kept {
		if text, err := os.ReadFile(k.Path); err != nil || string(text) != k.Text {
			broken = append(broken, fmt.Sprintf("%s reads %q and not %q: %v", k.Path, text, k.Text, err))
		}
		if f, err := os.OpenFile(k.Path, os.O_WRONLY, 0); err == nil {
			f.Close()
			broken = append(broken, k.Path+" can be written")
		}
	}
	return broken
}

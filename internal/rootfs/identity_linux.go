package rootfs

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// MachineIDFiles returns the files that have the ID of a machine: machine-id(5). One is often a link to the other.
func MachineIDFiles() [2]string { return [2]string{"/etc/machine-id", "/var/lib/dbus/machine-id"} }

// Identity is a layer that gives a sandbox its own machine ID. It lies above all layers of a snapshot, and replaces the
// machine IDs of other machines and sandboxes in the files of the stack below it, and keeps what follows them. A file
// that is missing, or that has another ID, which the sandbox has set itself, is not replaced. Because it is a layer
// like any other, it applies to every reader of a stack, the sandbox can change the files, and captures find no change.
type Identity struct {
	// Below is the stack below the layer.
	Below rootspec.Stack
	// MachineID is the sandbox's own ID, and Instead are those that it replaces: 32 hex digits.
	MachineID string
	Instead   []string
	// ByFiles is that of Mask.
	ByFiles bool
}

// Make creates the layer in the directory home, and returns its directory; "" if nothing is to be replaced. Its name
// is a digest of its content, and it never changes, like that of a Mask.
func (k Identity) Make(home string) (dir string, err error) {
	m, err := Mask{Below: k.Below, ByFiles: k.ByFiles}.plan(false)
	if err != nil {
		return "", err
	}
	for _, name := range MachineIDFiles() {
		id, text, st, err := m.machineID(name)
		if err != nil {
			return "", err
		}
		if !slices.Contains(k.Instead, id) {
			continue
		}
		if _, err := m.dir(path.Dir(name)); err != nil {
			return "", fault.Wrap(err, "replace %s", name)
		}
		m.files = append(m.files, maskFile{name, strings.Replace(text, id, k.MachineID, 1), st})
	}
	if len(m.files) == 0 {
		return "", nil
	}
	name, err := m.name()
	if err != nil {
		return "", fault.Wrap(err, "inspect the machine ID")
	}
	dir = filepath.Join(home, name)
	if _, err := os.Lstat(dir); err == nil {
		return dir, nil
	}
	return dir, fault.Wrap(m.write(home, dir), "create the identity layer")
}

// MachineIDs returns the machine IDs in the files of a stack, without duplicates.
func MachineIDs(stack rootspec.Stack) (ids []string, err error) {
	m, err := Mask{Below: stack}.plan(false)
	if err != nil {
		return nil, err
	}
	for _, name := range MachineIDFiles() {
		id, _, _, err := m.machineID(name)
		if err != nil {
			return nil, err
		}
		if id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// machineIDSize is the number of characters of a machine ID.
const machineIDSize = 32

// maxMachineIDFile is how many bytes a file with a machine ID has at most. What follows the ID is kept, so a layer has
// all of it; a longer file is not one that is meant to have an ID.
const maxMachineIDFile = 4 << 10

// machineID returns the machine ID in a file of the stack, and the file's text and properties. The ID is "" if the file
// has none, is not a regular file, or cannot be read by the caller. Links are not followed.
func (m *masker) machineID(name string) (id, text string, st unix.Stat_t, err error) {
	mode, where, err := m.look(path.Dir(name), path.Base(name))
	if err != nil || mode != unix.S_IFREG {
		return "", "", st, fault.Wrap(err, "inspect %s", name)
	}
	f, err := os.OpenFile(where, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if unreachable(err) || errors.Is(err, unix.ELOOP) {
		return "", "", st, nil
	}
	if err != nil {
		return "", "", st, fault.Wrap(err, "read %s", name)
	}
	defer f.Close()
	id, text, err = ReadMachineID(f)
	if err == nil {
		err = unix.Fstat(int(f.Fd()), &st)
	}
	return id, text, st, fault.Wrap(err, "read %s", name)
}

// ReadMachineID returns the text of a file of MachineIDFiles and the machine ID that it begins with, whatever follows
// after white space or a zero byte: some programs read only that. The ID is the first occurrence of itself in the text.
// It is "" if there is none: machine-id(5) also allows an empty file, and "uninitialized". Both are "" if the file is
// larger than 4 KiB.
func ReadMachineID(file io.Reader) (id, text string, err error) {
	all, err := io.ReadAll(io.LimitReader(file, maxMachineIDFile+1))
	if err != nil || len(all) > maxMachineIDFile {
		return "", "", err
	}
	text = string(all)
	id = strings.TrimSpace(text)
	if end := strings.IndexAny(id, " \t\r\n\x00"); end >= 0 {
		id = id[:end]
	}
	if !isMachineID(id) {
		id = ""
	}
	return id, text, nil
}

func isMachineID(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil && len(s) == machineIDSize
}

// maskFile is a file in an identity layer, with owner, mode and time of the one that it covers.
type maskFile struct {
	path   string // absolute
	text   string
	covers unix.Stat_t
}

// String describes the properties that make up the name of the layer.
func (f maskFile) String() string {
	c := f.covers
	return fmt.Sprintf("%q %q %o %d %d %d", f.path, f.text, c.Mode&0o777, c.Uid, c.Gid, c.Mtim.Nano())
}

// write creates the file in the layer at dir. It belongs to the caller if the owner cannot be set.
func (f maskFile) write(dir string) error {
	at := join(dir, strings.TrimPrefix(f.path, "/"))
	out, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = out.WriteString(f.text)
	if err == nil {
		err = out.Chown(int(f.covers.Uid), int(f.covers.Gid))
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EINVAL) { // EINVAL: the ID is not mapped
			err = nil
		}
	}
	if err == nil {
		err = out.Chmod(fs.FileMode(f.covers.Mode & 0o777))
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	ts := []unix.Timespec{f.covers.Atim, f.covers.Mtim}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, at, ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "set times of", Path: at, Err: err}
	}
	return nil
}

// identified returns the plan without the host's files that are mounts themselves and that the stack's identity layer
// replaces.
func (p HostPlan) identified(stack rootspec.Stack) HostPlan {
	if stack.Identity == "" {
		return p
	}
	p.Files = slices.DeleteFunc(p.Files, func(f rootspec.File) bool {
		fi, err := os.Lstat(join(stack.Identity, strings.TrimPrefix(f.Target, "/")))
		return err == nil && fi.Mode().IsRegular()
	})
	return p
}

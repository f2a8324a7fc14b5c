package rootfs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// record maps the parts of a generation to their directories. The path of each part is an attribute of its work
// directory, which is set after everything else of the part exists: one journalled operation of the file system, so
// that after a kill or a power failure no part is incomplete or taken for another.
type record struct{ parts []recordPart }

type recordPart struct {
	path string
	dir  string // in upper/ and work/: p0, p1, …
}

// partAttr is the attribute with the path of a part. It is on the work directory, which is visible neither to the
// sandbox nor to a capture.
const partAttr = "user.coppice.part"

// readRecord reads the record from a generation directory. If that is missing, the error wraps fs.ErrNotExist.
func readRecord(dir string) (record, error) {
	work := filepath.Join(dir, "work")
	names, err := listDir(work)
	if err != nil {
		return record{}, err
	}
	type numbered struct {
		recordPart
		n int
	}
	var all []numbered
	buf := make([]byte, 64<<10)
	for _, name := range names {
		n, err := strconv.Atoi(strings.TrimPrefix(name, "p"))
		if err != nil {
			continue
		}
		k, err := unix.Lgetxattr(filepath.Join(work, name), partAttr, buf)
		if errors.Is(err, unix.ENODATA) {
			continue // incomplete
		}
		if err != nil {
			return record{}, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, numbered{recordPart{path: string(buf[:k]), dir: name}, n})
	}
	slices.SortFunc(all, func(a, b numbered) int { return cmp.Compare(a.n, b.n) })
	var r record
	for _, a := range all {
		r.parts = append(r.parts, a.recordPart)
	}
	return r, nil
}

func (r *record) find(path string) (dir string, ok bool) {
	i := slices.IndexFunc(r.parts, func(p recordPart) bool { return p.path == path })
	if i < 0 {
		return "", false
	}
	return r.parts[i].dir, true
}

// add creates the directories of a new part, with the metadata of the directory covers.
func (r *record) add(dir, path, covers string) (string, error) {
	name := "p" + strconv.Itoa(len(r.parts))
	up, work := filepath.Join(dir, "upper", name), filepath.Join(dir, "work", name)
	for _, d := range []string{up, work} {
		if err := os.Mkdir(d, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return "", err
		}
	}
	if err := copyDirMeta(covers, up); err != nil {
		return "", err
	}
	if err := unix.Lsetxattr(work, partAttr, []byte(path), 0); err != nil {
		return "", fmt.Errorf("set an attribute of %s: %w", work, err)
	}
	r.parts = append(r.parts, recordPart{path: path, dir: name})
	return name, nil
}

// The list of omitted host paths is only for display: a missing or incomplete file is ignored.

func readLeft(dir string) []LeftOut {
	text, err := os.ReadFile(filepath.Join(dir, "left"))
	if err != nil {
		return nil
	}
	var left []LeftOut
	if json.Unmarshal(text, &left) != nil {
		return nil
	}
	return left
}

func writeLeft(dir string, left []LeftOut) error {
	if slices.Equal(readLeft(dir), left) {
		return nil
	}
	text, err := json.Marshal(left)
	if err != nil {
		return fault.Wrap(err, "record the parts that the live root leaves out")
	}
	return fault.Wrap(os.WriteFile(filepath.Join(dir,
		"left"), text, 0o600), "record the parts that the live root leaves out")
}

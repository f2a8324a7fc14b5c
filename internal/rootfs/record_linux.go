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

// record says which part of a generation has which directory. Each part's own
// path is an attribute of its work directory, set when everything else of the
// part is there: one journalled step of the file system, so that neither a kill
// nor a power cut leaves a part that is torn or mistaken for another.
type record struct{ parts []recordPart }

type recordPart struct {
	path string
	dir  string // below upper/ and work/: p0, p1, …
}

// partAttr holds the path of a part. It is on the work directory, which neither
// the sandbox nor a capture sees.
const partAttr = "user.coppice.part"

// readRecord looks at a generation directory; one that is not there is an error
// that wraps fs.ErrNotExist.
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
			continue // half made
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

// add makes the directories of a new part that looks like the directory covers.
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

// The list of what a generation leaves out is only for display: a missing or torn file is ignored.

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

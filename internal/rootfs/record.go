package rootfs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
)

// record is what an overlay generation remembers, in its file "parts".
type record struct {
	Version int          `json:"version"`
	Parts   []recordPart `json:"parts"`
	Left    []LeftOut    `json:"left,omitempty"`
}

type recordPart struct {
	Path string `json:"path"`
	Dir  string `json:"dir"` // below upper/ and work/
}

const recordVersion = 1

// readRecord gives fs.ErrNotExist for a generation that was never presented.
func readRecord(dir string) (record, error) {
	text, err := os.ReadFile(filepath.Join(dir, "parts"))
	if err != nil {
		return record{Version: recordVersion}, err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return record{}, fault.New(fault.Corrupt, "the record of the live root %s cannot be read", dir).Because(err)
	}
	if r.Version != recordVersion {
		return record{}, fault.New(fault.Version, "the live root %s has format %d; this build knows %d", dir, r.Version, recordVersion).
			WithHint("use the newer coppice that made it")
	}
	return r, nil
}

func (r *record) find(path string) (dir string, ok bool) {
	i := slices.IndexFunc(r.Parts, func(p recordPart) bool { return p.Path == path })
	if i < 0 {
		return "", false
	}
	return r.Parts[i].Dir, true
}

func (r *record) add(path string) string {
	p := recordPart{Path: path, Dir: fmt.Sprintf("p%d", len(r.Parts))}
	r.Parts = append(r.Parts, p)
	return p.Dir
}

// write replaces the file in one step.
func (r *record) write(dir string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fault.Wrap(err, "record the parts of the live root")
	}
	tmp := filepath.Join(dir, "parts.tmp")
	if err := os.WriteFile(tmp, append(text, '\n'), 0o600); err != nil {
		return fault.Wrap(err, "record the parts of the live root")
	}
	return fault.Wrap(os.Rename(tmp, filepath.Join(dir, "parts")), "record the parts of the live root")
}

package wire

import (
	"time"
	"unicode/utf8"
)

// The types of a FileInfo.
const (
	FileRegular = "file"
	FileDir     = "dir"
	FileLink    = "symlink"
	FileFIFO    = "fifo"
	FileSocket  = "socket"
	FileChar    = "char"
	FileBlock   = "block"
)

// FileInfo is one file of a sandbox.
type FileInfo struct {
	Path string `json:"path"`          // without a leading slash; "" is the root directory
	Raw  []byte `json:"raw,omitempty"` // the exact bytes of the path, when they are not valid UTF-8
	Type string `json:"type"`          // "file", "dir", "symlink", "fifo", "socket", "char" or "block"
	Size int64  `json:"size"`          // bytes of a regular file
	// permission bits, with setuid, setgid and sticky, as a decimal number: 420 is 0644
	Mode   uint32    `json:"mode"`
	Mtime  time.Time `json:"mtime"`            // when its content last changed
	UID    uint32    `json:"uid"`              // owner, as seen inside
	GID    uint32    `json:"gid"`              // group, as seen inside
	Target string    `json:"target,omitempty"` // where a symbolic link leads
	// changes when the file does; what the header of that name holds, for If-Match
	ETag string `json:"etag,omitempty"`
}

// SetName sets the path as it is on disk: leading slashes are cut off, and Raw is
// set when it is not valid UTF-8.
func (f *FileInfo) SetName(path string) { f.Path, f.Raw = name(path) }

// Name gives the exact bytes of the path.
func (f FileInfo) Name() string { return exact(f.Path, f.Raw) }

func name(path string) (text string, raw []byte) {
	for path != "" && path[0] == '/' {
		path = path[1:]
	}
	if !utf8.ValidString(path) {
		raw = []byte(path)
	}
	return path, raw
}

func exact(text string, raw []byte) string {
	if raw != nil {
		return string(raw)
	}
	return text
}

// FileList is what a directory holds.
type FileList struct {
	Files []FileInfo `json:"files"` // parents before children, names in order
}

// The kinds of a FileEvent.
const (
	FileCreated    = "created"
	FileWritten    = "written" // a writer has closed it, or it was replaced
	FileRemoved    = "removed"
	FileMoved      = "moved"      // From says from where
	FileAttributes = "attributes" // mode, owner or times
	FileOverflow   = "overflow"   // too much happened at once: some of it is not told; look again
)

// FileEvent is something that happened to a file. The first one of a watch has no
// kind: nothing is missed any more.
type FileEvent struct {
	// "created", "written" (a writer has closed it, or it was replaced), "removed",
	// "moved", "attributes", "overflow" (some changes are not told: look again); "" of
	// the first one: nothing is missed any more
	Kind    string `json:"kind"`
	Path    string `json:"path"`               // without a leading slash
	Raw     []byte `json:"raw,omitempty"`      // the exact bytes of the path, when they are not valid UTF-8
	From    string `json:"from,omitempty"`     // with "moved": where it was
	FromRaw []byte `json:"from_raw,omitempty"` // the exact bytes of from, when they are not valid UTF-8
	Dir     bool   `json:"dir,omitempty"`      // it is a directory
}

// NewFileEvent makes an event of a path as it is on disk.
func NewFileEvent(kind, path string) FileEvent {
	e := FileEvent{Kind: kind}
	e.Path, e.Raw = name(path)
	return e
}

// SetFrom sets where a file was moved from.
func (e *FileEvent) SetFrom(path string) { e.From, e.FromRaw = name(path) }

// Name gives the exact bytes of the path.
func (e FileEvent) Name() string { return exact(e.Path, e.Raw) }

// MkdirRequest asks for a directory.
type MkdirRequest struct {
	Path string `json:"path"`           // of the new directory
	Raw  []byte `json:"raw,omitempty"`  // the exact bytes of the path, instead of it, when they are not valid UTF-8
	Mode uint32 `json:"mode,omitempty"` // permission bits as a decimal number; 0 is 0755, which is 493
	// also make what is missing on the way, and be content with a directory that is there
	Parents bool `json:"parents,omitempty"`
}

// Name gives the exact bytes of the path.
func (r MkdirRequest) Name() string { return exact(r.Path, r.Raw) }

// SetName sets the path, whatever its bytes.
func (r *MkdirRequest) SetName(path string) { r.Path, r.Raw = name(path) }

// MoveRequest asks for another name, as rename(2).
type MoveRequest struct {
	From    string `json:"from"`               // the path now
	FromRaw []byte `json:"from_raw,omitempty"` // the exact bytes of from, instead of it, when they are not valid UTF-8
	To      string `json:"to"`                 // the path then; a file there is replaced
	ToRaw   []byte `json:"to_raw,omitempty"`   // the exact bytes of to, instead of it, when they are not valid UTF-8
}

// Names gives the exact bytes of the paths.
func (r MoveRequest) Names() (from, to string) {
	return exact(r.From, r.FromRaw), exact(r.To, r.ToRaw)
}

// SetNames sets the paths, whatever their bytes.
func (r *MoveRequest) SetNames(from, to string) {
	r.From, r.FromRaw = name(from)
	r.To, r.ToRaw = name(to)
}

// WriteOptions says how a file is written.
type WriteOptions struct {
	// Mode is the permission bits; nil keeps those of the file that is replaced,
	// without setuid and setgid, and is 0644 for a new one.
	Mode *uint32
	// Match refuses (conflict) unless the file has this ETag; "*" is any file.
	Match string
	// New refuses (exists) when there is such a file.
	New bool
}

// UnpackResult is the result of unpacking an archive.
type UnpackResult struct {
	Files   int64    `json:"files"`              // files and links unpacked, without directories
	Bytes   int64    `json:"bytes"`              // content of files
	LeftOut []string `json:"left_out,omitempty"` // entries that were skipped or changed, and why
}

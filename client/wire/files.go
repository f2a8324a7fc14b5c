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
	Size int64  `json:"size"`          // size of a regular file, in bytes
	// permission bits, with setuid, setgid and sticky, as a decimal number: 420 is 0644
	Mode   uint32    `json:"mode"`
	Mtime  time.Time `json:"mtime"`            // time of the last change of its content
	UID    uint32    `json:"uid"`              // owner, as seen inside the sandbox
	GID    uint32    `json:"gid"`              // group, as seen inside the sandbox
	Target string    `json:"target,omitempty"` // target of a symbolic link
	// changes when the file does; the value of the ETag header, for If-Match
	ETag string `json:"etag,omitempty"`
}

// SetName sets the path from its bytes on disk: leading slashes are removed, and Raw is set if it is not valid UTF-8.
func (f *FileInfo) SetName(path string) { f.Path, f.Raw = name(path) }

// Name returns the exact bytes of the path.
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

// FileList is the content of a directory.
type FileList struct {
	Files []FileInfo `json:"files"` // parents before children, names in order
}

// The kinds of a FileEvent.
const (
	FileCreated    = "created"
	FileWritten    = "written" // a writer closed the file, or it was replaced
	FileRemoved    = "removed"
	FileMoved      = "moved"      // From is the previous path
	FileAttributes = "attributes" // mode, owner or times changed
	FileOverflow   = "overflow"   // too many changes at once: some are not reported; list the directory again
)

// FileEvent is a change of a file. The first event of a watch has no kind; it means that the watch is complete.
type FileEvent struct {
	// "created", "written" (a writer closed it, or it was replaced), "removed", "moved", "attributes", "overflow"
	// (some changes are not reported: list again); "" of the first event: the watch is complete
	Kind    string `json:"kind"`
	Path    string `json:"path"`               // without a leading slash
	Raw     []byte `json:"raw,omitempty"`      // the exact bytes of the path, when they are not valid UTF-8
	From    string `json:"from,omitempty"`     // with "moved": the previous path
	FromRaw []byte `json:"from_raw,omitempty"` // the exact bytes of from, when they are not valid UTF-8
	Dir     bool   `json:"dir,omitempty"`      // the file is a directory
}

// NewFileEvent returns an event for the bytes of a path on disk.
func NewFileEvent(kind, path string) FileEvent {
	e := FileEvent{Kind: kind}
	e.Path, e.Raw = name(path)
	return e
}

// SetFrom sets the previous path of a moved file.
func (e *FileEvent) SetFrom(path string) { e.From, e.FromRaw = name(path) }

// Name returns the exact bytes of the path.
func (e FileEvent) Name() string { return exact(e.Path, e.Raw) }

// MkdirRequest asks for a new directory.
type MkdirRequest struct {
	Path string `json:"path"`           // path of the new directory
	Raw  []byte `json:"raw,omitempty"`  // the exact bytes of the path, instead of it, when they are not valid UTF-8
	Mode uint32 `json:"mode,omitempty"` // permission bits as a decimal number; 0 is 0755, which is 493
	// also create missing parents, and accept an existing directory
	Parents bool `json:"parents,omitempty"`
}

// Name returns the exact bytes of the path.
func (r MkdirRequest) Name() string { return exact(r.Path, r.Raw) }

// SetName sets the path from its exact bytes.
func (r *MkdirRequest) SetName(path string) { r.Path, r.Raw = name(path) }

// MoveRequest asks to rename a file, as rename(2).
type MoveRequest struct {
	From    string `json:"from"`               // the current path
	FromRaw []byte `json:"from_raw,omitempty"` // the exact bytes of from, instead of it, when they are not valid UTF-8
	To      string `json:"to"`                 // the new path; a file there is replaced
	ToRaw   []byte `json:"to_raw,omitempty"`   // the exact bytes of to, instead of it, when they are not valid UTF-8
}

// Names returns the exact bytes of the paths.
func (r MoveRequest) Names() (from, to string) {
	return exact(r.From, r.FromRaw), exact(r.To, r.ToRaw)
}

// SetNames sets the paths from their exact bytes.
func (r *MoveRequest) SetNames(from, to string) {
	r.From, r.FromRaw = name(from)
	r.To, r.ToRaw = name(to)
}

// WriteOptions configures the writing of a file.
type WriteOptions struct {
	// Mode is the permission bits; nil keeps those of the replaced file, without setuid and setgid, and is 0644 for a
	// new file.
	Mode *uint32
	// Match makes the write fail (conflict) unless the file has this ETag; "*" is any file.
	Match string
	// New makes the write fail (exists) if the file exists.
	New bool
}

// UnpackResult is the result of unpacking an archive.
type UnpackResult struct {
	Files   int64    `json:"files"`              // number of files and links unpacked, without directories
	Bytes   int64    `json:"bytes"`              // content bytes of the files
	LeftOut []string `json:"left_out,omitempty"` // entries that were skipped or changed, with the reason
}

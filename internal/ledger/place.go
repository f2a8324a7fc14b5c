package ledger

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// The files of a ledger, below its directory.
const (
	fileKey        = "key"            // secret; see keys_linux.go
	fileLock       = "lock"           // locked by the process that has the ledger open
	dirLog         = "log"            //
	dirSandboxes   = "sandbox"        // sandbox/ID/FIRST.jsonl, FIRST.jsonl.gz
	dirBlobs       = "blobs"          // blobs/ID/NAME
	fileIntake     = "log/intake"     // records appended since the last fold
	fileHashes     = "log/hashes"     // stored hashes of the tree, 32 bytes each
	fileHeads      = "log/heads"      // end of each sandbox's chain, at the last fold
	fileCheckpoint = "log/checkpoint" // signed, of the last fold
	fileKeys       = "log/keys"       // public
	fileWitness    = "log/witness"    // newest checkpoint with cosignatures
)

// maxSmall is the maximum size of a file that is read as a whole, in bytes.
const maxSmall = 64 << 20

// readFile returns the content of a file; nil if it does not exist.
func readFile(path, name string) ([]byte, error) {
	file, err := openAt(path, name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, maxSmall+1)) // never nil
	if err == nil && len(b) > maxSmall {
		err = fault.New(fault.Corrupt, "%s exceeds %d bytes", name, maxSmall)
	}
	return b, err
}

// openAt opens a file or directory of a ledger, which must not be a link.
func openAt(path, name string, flags int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(path, name), flags|noFollow, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		err = fault.New(fault.Corrupt, "%s of the ledger is neither a file nor a directory", name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

const (
	plainEnd   = ".jsonl"
	archiveEnd = ".jsonl.gz"
)

// segment returns the file of a sandbox's records from the one numbered first on.
func segment(id format.Sandbox, first int64) string {
	return dirSandboxes + "/" + string(id) + "/" + pad(first) + plainEnd
}

// firstOf returns the number in the name of a segment; 0 for any other name.
func firstOf(name string) int64 {
	digits, ok := strings.CutSuffix(name, plainEnd)
	if !ok {
		digits, ok = strings.CutSuffix(name, archiveEnd)
	}
	if !ok || len(digits) != len(pad(0)) {
		return 0
	}
	return atoi(digits)
}

package secretbox

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// The content of a key file: a title and 64 hex digits, each on its own line; or one word, with which the owner
// declares the key lost.
const (
	title = "coppice seal key 1"
	lost  = "lost"
	// maxFile is larger than any key file, in bytes.
	maxFile = 256
)

// ErrLost says that the owner has marked the key in a file as lost.
var ErrLost = errors.New("the key is marked as lost")

// Load reads a key from its file, which only its owner may read. It returns NotFound if the file does not exist,
// ErrLost, Denied for a file that others may read, and Version or Corrupt for a file that is not a key.
func Load(path string) (Key, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Key{}, fault.New(fault.NotFound, "key %s not found", path).Because(err)
	}
	if err != nil {
		return Key{}, fault.Wrap(err, "open the key %s", path)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return Key{}, fault.Wrap(err, "open the key %s", path)
	}
	if !st.Mode().IsRegular() {
		return Key{}, fault.New(fault.Corrupt, "%s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return Key{}, fault.Wrap(err, "read the key %s", path)
	}
	if strings.TrimSpace(string(b)) == lost {
		return Key{}, ErrLost
	}
	if st.Mode().Perm()&0o077 != 0 {
		return Key{}, fault.New(fault.Denied, "the key %s is readable by other users", path).
			WithHint("restrict it: chmod 600 %s", path)
	}
	return parse(path, string(b))
}

// parse parses the content of a key file.
func parse(path, text string) (Key, error) {
	first, rest, _ := strings.Cut(text, "\n")
	if first != title {
		if strings.HasPrefix(first, strings.TrimSuffix(title, "1")) {
			return Key{}, fault.New(fault.Version, "unknown version of key %s: %.40q: must be %q", path, first, title).
				WithHint("use the version of coppice that created it")
		}
		return Key{}, fault.New(fault.Corrupt, "%s is not a key", path)
	}
	digits, end := strings.CutSuffix(rest, "\n")
	secret, err := hex.DecodeString(digits)
	if err != nil || !end || len(secret) != Size || digits != strings.ToLower(digits) {
		return Key{}, fault.New(fault.Corrupt, "the key %s is damaged", path)
	}
	return New(secret)
}

// Make writes a new key to a file with mode 0600, and replaces an existing one. The file is durable when Make
// returns.
func Make(fsys vfs.FS, path string) (Key, error) {
	secret := make([]byte, Size)
	_, _ = rand.Read(secret) // it never fails
	k, err := New(secret)
	if err != nil {
		return Key{}, err
	}
	if err := vfs.WriteFile(fsys, path, []byte(title+"\n"+hex.EncodeToString(secret)+"\n")); err != nil {
		return Key{}, fault.Wrap(err, "create the key %s", path)
	}
	return k, nil
}

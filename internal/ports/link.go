package ports

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Key is the secret key that tokens are signed with.
type Key [32]byte

// keyName is the file of the key in a home.
const keyName = "preview.key"

// LoadKey reads the key of a home, or creates it. The file has mode 0600, in a home that is closed to others.
// Deleting the file invalidates all links. A key that others may have read, or that this user may not
// read, is replaced.
func LoadKey(home string) (Key, error) {
	path := filepath.Join(home, keyName)
	k, err := readKey(path)
	if fault.Is(err, fault.Denied) {
		if rerr := os.Remove(path); rerr != nil {
			return Key{}, errors.Join(err, rerr)
		}
		err = fs.ErrNotExist
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	if err := makeKey(home, path); err != nil {
		return Key{}, fault.Wrap(err, "create the key of preview links")
	}
	return readKey(path)
}

func readKey(path string) (k Key, err error) {
	void := "remove it, which invalidates existing links: rm " + path
	st, err := os.Lstat(path)
	if err != nil {
		return k, fault.Wrap(err, "open the key of preview links")
	}
	if !st.Mode().IsRegular() || st.Size() != int64(len(k)) {
		return k, fault.New(fault.Corrupt, "invalid key file %s", path).WithHint("%s", void)
	}
	f, err := os.Open(path)
	if err != nil {
		return k, fault.Wrap(err, "open the key of preview links")
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !os.SameFile(st, now) {
		return k, fault.New(fault.Corrupt, "invalid key file %s", path).WithHint("%s", void).Because(err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return k, fault.New(fault.Denied, "key file %s is readable by other users", path).WithHint("%s", void)
	}
	if n, err := f.Read(k[:]); err != nil || n != len(k) {
		return Key{}, fault.New(fault.Corrupt, "invalid key file %s", path).WithHint("%s", void).Because(err)
	}
	return k, nil
}

// makeKey creates the file of the key atomically, unless it exists.
func makeKey(home, path string) error {
	var k Key
	if _, err := rand.Read(k[:]); err != nil {
		return err
	}
	f, err := os.CreateTemp(home, "."+keyName+"-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it was renamed, or is useless
	_, err = f.Write(k[:])
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Uses of a token. A token for one use is invalid for the other.
const (
	forLink   = "link"
	forCookie = "cookie"
)

// maxToken is the maximum length of a token, in bytes.
const maxToken = 256

// claim is the content of a token: its holder may use one port of one sandbox until a time.
type claim struct {
	use     string
	sandbox string // id
	port    int
	expires int64 // seconds since 1970
}

// text is the signed text.
func (c claim) text() string {
	return "1." + c.sandbox + "." + strconv.Itoa(c.port) + "." + strconv.FormatInt(c.expires, 10)
}

// sign returns a token: the claim, and its HMAC-SHA256. The use is signed but not included.
func (k Key) sign(c claim) string {
	return c.text() + "." + base64.RawURLEncoding.EncodeToString(k.mac(c))
}

func (k Key) mac(c claim) []byte {
	h := hmac.New(sha256.New, k[:])
	_, _ = h.Write([]byte("coppice preview " + c.use + "\x00" + c.text())) // a hash does not fail
	return h.Sum(nil)
}

// read verifies a token for a port of any sandbox, and returns its claim. A token is valid until it expires, and has
// exactly one spelling.
func (k Key) read(token, use string, port int, now time.Time) (c claim, good bool) {
	if len(token) > maxToken {
		return claim{}, false
	}
	part := strings.Split(token, ".")
	if len(part) != 5 {
		return claim{}, false
	}
	expires, err := strconv.ParseInt(part[3], 10, 64)
	if err != nil {
		return claim{}, false
	}
	c = claim{use: use, sandbox: part[1], port: port, expires: expires}
	mac, err := base64.RawURLEncoding.Strict().DecodeString(part[4])
	// The decoder skips line ends, which no token has.
	if err != nil || strings.ContainsAny(part[4], "\r\n") || token != c.text()+"."+part[4] || !hmac.Equal(mac, k.mac(c)) {
		return claim{}, false
	}
	return c, now.Unix() < c.expires
}

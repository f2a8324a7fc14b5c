package ledger

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

const keyTitle = "coppice ledger key 1"

// secrets is the content of the file key: the signer of the log, the secret that names blobs, and all public keys so
// far. It is one file, so that a rotation is one rename.
//
//	coppice ledger key 1
//	signer PRIVATE+KEY+...
//	blobs HEX
//	recorded true|false        whether the newest rotation is a record yet
//	<the public keys, as format.Keys.Encode has them>
type secrets struct {
	signer   note.Signer
	secret   string // signer's encoding
	blobs    []byte // 32 bytes
	recorded bool
	keys     format.Keys
}

// newSecrets returns the keys of a new log, whose name is random.
func newSecrets() (*secrets, error) {
	b := make([]byte, 40)
	if _, err := rand.Read(b); err != nil {
		return nil, err
	}
	s := &secrets{blobs: b[:32], recorded: true}
	vkey, err := s.generate("coppice/" + hex.EncodeToString(b[32:]))
	s.keys = format.Keys{{Key: vkey}}
	return s, err
}

func (s *secrets) generate(origin string) (vkey string, err error) {
	if s.secret, vkey, err = note.GenerateKey(rand.Reader, origin); err != nil {
		return "", err
	}
	s.signer, err = note.NewSigner(s.secret)
	return vkey, err
}

// Derive returns 32 secret bytes for a purpose. They are always the same for a ledger, also after a rotation of its
// keys.
func (l *Ledger) Derive(purpose string) []byte {
	h := hmac.New(sha256.New, l.naming.blobs)
	h.Write([]byte("coppice ledger derived key\n" + purpose))
	return h.Sum(nil)
}

// rotated returns secrets with a new signer, which signs from a size of the log on.
func (s *secrets) rotated(size int64) (*secrets, error) {
	next := &secrets{blobs: s.blobs}
	vkey, err := next.generate(s.keys.Origin())
	if err != nil {
		return nil, err
	}
	statement, err := format.Sign(format.Rotation(s.keys.Origin(), size, vkey), s.signer)
	next.keys = append(s.keys[:len(s.keys):len(s.keys)], format.LogKey{Key: vkey, From: size, Statement: statement})
	return next, err
}

func (s *secrets) encode() []byte {
	return fmt.Appendf(nil, "%s\nsigner %s\nblobs %x\nrecorded %v\n%s", keyTitle, s.secret, s.blobs, s.recorded,
		s.keys.Encode())
}

func parseSecrets(b []byte) (*secrets, error) {
	f := strings.SplitN(string(b), "\n", 5)
	if f[0] != keyTitle {
		return nil, fault.New(fault.Version, "unknown version %.40q of the ledger's key file: must be %q", f[0], keyTitle)
	}
	bad := fault.New(fault.Corrupt, "the ledger's key file is damaged")
	if len(f) != 5 {
		return nil, bad
	}
	s := &secrets{secret: strings.TrimPrefix(f[1], "signer "), recorded: f[3] == "recorded true"}
	var err error
	if s.signer, err = note.NewSigner(s.secret); err != nil {
		return nil, bad
	}
	if s.blobs, err = hex.DecodeString(strings.TrimPrefix(f[2], "blobs ")); err != nil || len(s.blobs) != 32 {
		return nil, bad
	}
	s.keys, err = format.ParseKeys([]byte(f[4]))
	return s, err
}

// blob returns the salt and the name of a sandbox's blob. They are the same for the same content, and reveal nothing
// about it without the key or the salt.
func (s *secrets) blob(id format.Sandbox, content []byte) (salt, name format.Hash) {
	sum := sha256.Sum256(content)
	m := hmac.New(sha256.New, s.blobs)
	fmt.Fprintf(m, "%s\n", id)
	m.Write(sum[:])
	salt = format.Hash(m.Sum(nil))
	m = hmac.New(sha256.New, salt[:])
	m.Write(content)
	return salt, format.Hash(m.Sum(nil))
}

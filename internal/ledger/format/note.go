package format

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Checkpoint is the state of a log at one size, in the format of C2SP tlog-checkpoint.
type Checkpoint struct {
	Origin string // name of the log, and of its keys
	Size   int64  // number of leaves
	Root   Hash
}

// Text returns the text that is signed.
func (c Checkpoint) Text() string {
	return fmt.Sprintf("%s\n%d\n%s\n", c.Origin, c.Size, base64.StdEncoding.EncodeToString(c.Root[:]))
}

// ParseCheckpoint reads the output of Text. It accepts nothing else.
func ParseCheckpoint(text string) (c Checkpoint, err error) {
	f := strings.Split(text, "\n")
	if len(f) == 4 {
		c.Origin = f[0]
		c.Size, _ = strconv.ParseInt(f[1], 10, 64)
		root, _ := base64.StdEncoding.DecodeString(f[2])
		copy(c.Root[:], root)
	}
	if c.Size < 0 || c.Origin == "" || c.Text() != text {
		return Checkpoint{}, fault.New(fault.Corrupt, "not a checkpoint")
	}
	return c, nil
}

// Sign signs a text, whose lines all end with a newline, as a note.
func Sign(text string, key note.Signer) ([]byte, error) {
	return note.Sign(&note.Note{Text: text}, key)
}

// OpenNote returns the text of a note that has exactly one signature, by the verifier key. It accepts only the
// canonical form of the note.
func OpenNote(msg []byte, vkey string) (string, error) {
	v, err := note.NewVerifier(vkey)
	if err != nil {
		return "", fault.New(fault.Corrupt, "invalid verifier key %.120q", vkey).Because(err)
	}
	n, err := note.Open(msg, note.VerifierList(v))
	if err != nil {
		return "", fault.New(fault.Corrupt, "the note is not signed by %s", vkey).Because(err)
	}
	if len(n.Sigs) != 1 || len(n.UnverifiedSigs) != 0 || !bytes.Equal(msg, joined(n.Text, n.Sigs)) {
		return "", fault.New(fault.Corrupt, "the note has more than one signature, or a malformed one")
	}
	return n.Text, nil
}

// joined returns a note with its signatures in canonical encoding.
func joined(text string, sigs []note.Signature) []byte {
	b := []byte(text + "\n")
	for _, s := range sigs {
		raw, err := base64.StdEncoding.DecodeString(s.Base64)
		if err != nil {
			return nil
		}
		b = fmt.Appendf(b, "— %s %s\n", s.Name, base64.StdEncoding.EncodeToString(raw))
	}
	return b
}

// Keys are the keys of a log, oldest first, each signed by the previous one.
type Keys []LogKey

// LogKey is one key of a log.
type LogKey struct {
	Key       string // verifier key, in the format of note
	From      int64  // size of the log from which on it signs; the previous key signs up to it
	Statement []byte // note in which the previous key names this one; nil for the first
}

const keyTitle = "coppice-ledger-key/v1"

// Rotation returns the text that the old key signs.
func Rotation(origin string, from int64, vkey string) string {
	return fmt.Sprintf("%s\n%s\n%d\n%s\n", keyTitle, origin, from, vkey)
}

// rotationLines is the number of lines in the note of a rotation.
const rotationLines = 6

// Encode returns the text of the keys: the first key, and the statement of each further one.
func (k Keys) Encode() []byte {
	b := []byte(k[0].Key + "\n")
	for _, one := range k[1:] {
		b = append(b, one.Statement...)
	}
	return b
}

// ParseKeys reads the output of Encode, and verifies each key with the previous one.
func ParseKeys(text []byte) (Keys, error) {
	lines := strings.SplitAfter(string(text), "\n")
	if n := len(lines); n < 2 || lines[n-1] != "" || (n-2)%rotationLines != 0 {
		return nil, fault.New(fault.Corrupt, "not the keys of a log")
	}
	first := strings.TrimSuffix(lines[0], "\n")
	v, err := note.NewVerifier(first)
	if err != nil || !sameKey(first, v) {
		return nil, fault.New(fault.Corrupt, "invalid verifier key %.120q", first).Because(err)
	}
	keys := Keys{{Key: first}}
	for rest := lines[1 : len(lines)-1]; len(rest) > 0; rest = rest[rotationLines:] {
		last := keys[len(keys)-1]
		statement := []byte(strings.Join(rest[:rotationLines], ""))
		said, err := OpenNote(statement, last.Key)
		if err != nil {
			return nil, err
		}
		f := strings.Split(said, "\n")
		if len(f) != 5 {
			return nil, fault.New(fault.Corrupt, "the statement of key %d of the log does not name it", len(keys))
		}
		from, _ := strconv.ParseInt(f[2], 10, 64)
		next, err := note.NewVerifier(f[3])
		if err != nil || !sameKey(f[3], next) || next.Name() != v.Name() || from < last.From ||
			said != Rotation(v.Name(), from, f[3]) {
			return nil, fault.New(fault.Corrupt, "key %d of the log is not signed by its predecessor", len(keys)).Because(err)
		}
		keys = append(keys, LogKey{Key: f[3], From: from, Statement: statement})
	}
	return keys, nil
}

// sameKey reports whether a verifier key is in canonical encoding.
func sameKey(vkey string, v note.Verifier) bool {
	f := strings.SplitN(vkey, "+", 3)
	if len(f) != 3 || f[0] != v.Name() || f[1] != fmt.Sprintf("%08x", v.KeyHash()) {
		return false
	}
	raw, err := base64.StdEncoding.DecodeString(f[2])
	return err == nil && base64.StdEncoding.EncodeToString(raw) == f[2]
}

// Origin returns the name of the log that the keys belong to.
func (k Keys) Origin() string { name, _, _ := strings.Cut(k[0].Key, "+"); return name }

// Trusting returns the keys that follow from trusted ones: the oldest of them in k, and those that it signed.
// It returns an error if k has none of them.
func (k Keys) Trusting(trusted []string) (Keys, error) {
	for i, one := range k {
		for _, t := range trusted {
			if t == one.Key {
				return k[i:], nil
			}
		}
	}
	return nil, fault.New(fault.Denied, "no key of %s is trusted", k.Origin()).
		WithHint("compare the keys with those from the owner of the host")
}

// Open returns the text of a note that was signed when the log had size leaves, and the key that signed it. It does
// not accept a key that had been replaced by then.
func (k Keys) Open(msg []byte, size int64) (text, vkey string, err error) {
	err = fault.New(fault.Corrupt, "no key of %s is valid for size %d", k.Origin(), size)
	for i, one := range k {
		if size < one.From || i+1 < len(k) && size > k[i+1].From {
			continue
		}
		if text, err = OpenNote(msg, one.Key); err == nil {
			return text, one.Key, nil
		}
	}
	return "", "", err
}

// Checkpoint reads a checkpoint of this log. Further signatures, such as those of witnesses, are ignored.
func (k Keys) Checkpoint(msg []byte) (Checkpoint, error) {
	text, sigs, ok := bytes.Cut(msg, []byte("\n\n"))
	c, err := ParseCheckpoint(string(text) + "\n")
	if err != nil {
		return c, err
	}
	if c.Origin != k.Origin() {
		return c, fault.New(fault.Invalid, "the checkpoint is of %.80q, but the log is %s", c.Origin, k.Origin())
	}
	for line := range bytes.Lines(sigs) {
		alone := append([]byte(c.Text()+"\n"), line...)
		if _, _, err := k.Open(alone, c.Size); ok && err == nil {
			return c, nil
		}
	}
	return c, fault.New(fault.Corrupt, "the checkpoint of size %d is not signed by a key of %s", c.Size, k.Origin())
}

// Cosignatures by C2SP tlog-cosignature/v1, with Ed25519.
const (
	cosignature = 4
	cosigned    = 8 + ed25519.SignatureSize
)

// WitnessKey returns the verifier key of a witness.
func WitnessKey(name string, key ed25519.PublicKey) string {
	raw := append([]byte{cosignature}, key...)
	return fmt.Sprintf("%s+%08x+%s", name, witnessHash(name, raw), base64.StdEncoding.EncodeToString(raw))
}

func witnessHash(name string, raw []byte) uint32 {
	sum := sha256.Sum256(append([]byte(name+"\n"), raw...))
	return binary.BigEndian.Uint32(sum[:4])
}

func cosignedText(text string, at int64) []byte {
	return fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", at, text)
}

// Cosign returns the line in which a witness states that, at a time, it saw a checkpoint and none that contradicts
// it. The caller ensures that this is true.
func Cosign(c Checkpoint, name string, key ed25519.PrivateKey, at time.Time) string {
	pub := key.Public().(ed25519.PublicKey)
	raw := binary.BigEndian.AppendUint32(nil, witnessHash(name, append([]byte{cosignature}, pub...)))
	raw = binary.BigEndian.AppendUint64(raw, uint64(at.Unix()))
	raw = append(raw, ed25519.Sign(key, cosignedText(c.Text(), at.Unix()))...)
	return fmt.Sprintf("— %s %s\n", name, base64.StdEncoding.EncodeToString(raw))
}

// Cosigned returns when a witness, given by its verifier key, signed the checkpoint in a note. It returns an error if
// the witness did not sign it.
func Cosigned(msg []byte, vkey string) (time.Time, error) {
	none := fault.New(fault.Corrupt, "the checkpoint is not signed by witness %.120q", vkey)
	text, sigs, _ := strings.Cut(string(msg), "\n\n")
	f := strings.SplitN(vkey, "+", 3)
	if len(f) != 3 {
		return time.Time{}, none
	}
	key, err := base64.StdEncoding.DecodeString(f[2])
	if err != nil || len(key) != 1+ed25519.PublicKeySize || key[0] != cosignature ||
		f[1] != fmt.Sprintf("%08x", witnessHash(f[0], key)) {
		return time.Time{}, none.WithHint("a witness key is NAME+HASH+BASE64, of type 4 (tlog-cosignature/v1)")
	}
	for line := range strings.Lines(sigs) {
		b64, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "— "+f[0]+" ")
		raw, err := base64.StdEncoding.Strict().DecodeString(b64)
		if !ok || err != nil || len(raw) != 4+cosigned || binary.BigEndian.Uint32(raw) != witnessHash(f[0], key) {
			continue
		}
		at := binary.BigEndian.Uint64(raw[4:])
		if at < 1<<62 && ed25519.Verify(key[1:], cosignedText(text+"\n", int64(at)), raw[12:]) {
			return time.Unix(int64(at), 0).UTC(), nil
		}
	}
	return time.Time{}, none
}

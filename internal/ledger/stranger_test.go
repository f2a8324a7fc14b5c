package ledger_test

// This file is a second verifier of bundles, which shares no code with Coppice's own: it uses only the standard
// library, and each rule that it applies is in docs/LEDGER.md. Its author knew the other verifier, so it does not
// prove that a reader who only has the page would understand it the same way. The tests compare the results of both.
//
// It verifies the archive, signatures, sums, names of captures, the chain and the root. It leaves out what is not
// needed for that: the fields of a record besides those of the chain, growth from an older checkpoint, and witnesses.

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

type hash = [32]byte

var errBundle = errors.New("the bundle does not verify")

func no(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errBundle, fmt.Sprintf(format, args...))
}

// stranger verifies a bundle, given the first key of its log. It returns the number of records.
func stranger(bundle []byte, trusted string) (int, error) {
	manifest, rest, err := untar(bundle, "manifest", -1)
	if err != nil {
		return 0, err
	}
	text, _, ok := strings.Cut(string(manifest), "\n\n")
	lines := strings.Split(text, "\n")
	if !ok || len(lines) < 6 || lines[0] != "coppice-ledger-bundle/v1" {
		return 0, no("manifest")
	}
	origin := lines[1]
	sandbox, ok1 := strings.CutPrefix(lines[2], "sandbox ")
	records, ok2 := field(lines[3], "records ")
	head, ok3 := strings.CutPrefix(lines[4], "head ")
	size, ok4 := field(lines[5], "size ")
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return 0, no("manifest")
	}
	files, blobs := map[string][]byte{}, map[string]bool{}
	for _, line := range lines[6:] {
		f := strings.Split(line, " ")
		name, salt := f[len(f)-1], ""
		switch {
		case f[0] == "file" && len(f) == 4:
		case f[0] == "blob" && len(f) == 5:
			salt, name = f[3], "blobs/"+f[4]
			blobs[f[4]] = true
		case f[0] == "absent" && len(f) == 2:
			blobs[f[1]] = true
			continue
		default:
			return 0, no("manifest line %q", line)
		}
		n, ok := field(f[1], "")
		if !ok {
			return 0, no("manifest line %q", line)
		}
		if files[name], rest, err = untar(rest, name, n); err != nil {
			return 0, err
		}
		if fmt.Sprintf("%x", sha256.Sum256(files[name])) != f[2] {
			return 0, no("sum of %s", name)
		}
		if salt != "" {
			key, err := hex.DecodeString(salt)
			m := hmac.New(sha256.New, key)
			m.Write(files[name])
			if err != nil || fmt.Sprintf("%x", m.Sum(nil)) != f[4] {
				return 0, no("name of %s", name)
			}
		}
	}
	if !bytes.Equal(rest, make([]byte, 1024)) {
		return 0, no("end")
	}
	keys, err := chain(files["keys"], origin, trusted)
	if err != nil {
		return 0, err
	}
	if err := keys.signed(manifest, size); err != nil {
		return 0, err
	}
	if err := keys.signed(files["checkpoint"], size); err != nil {
		return 0, err
	}
	c := strings.Split(string(files["checkpoint"]), "\n")
	if c[0] != origin || c[1] != strconv.FormatInt(size, 10) || c[3] != "" {
		return 0, no("checkpoint")
	}
	root, err := base64.StdEncoding.DecodeString(c[2])
	if err != nil {
		return 0, no("checkpoint")
	}
	leaves, last, err := follow(files["records.jsonl"], sandbox, blobs)
	if err != nil {
		return 0, err
	}
	if int64(len(leaves)) != records || last != head {
		return 0, no("%d records that end with %s", len(leaves), last)
	}
	t := tree{leaves: leaves, proof: files["proof"]}
	got, ok := t.root(0, size)
	if !ok || len(t.leaves) > 0 || len(t.proof) > 0 || !bytes.Equal(got[:], root) {
		return 0, no("root")
	}
	return int(records), nil
}

func field(s, prefix string) (int64, bool) {
	s, ok := strings.CutPrefix(s, prefix)
	n, err := strconv.ParseInt(s, 10, 64)
	return n, ok && err == nil && n >= 0 && strconv.FormatInt(n, 10) == s
}

// untar returns the next file, which must have this name, and this size unless it is -1.
func untar(b []byte, name string, size int64) (content, rest []byte, err error) {
	if len(b) < 512 {
		return nil, nil, no("%s is cut off", name)
	}
	if size < 0 {
		if size, err = strconv.ParseInt(string(b[124:135]), 8, 64); err != nil || size < 0 {
			return nil, nil, no("header of %s", name)
		}
	}
	h := make([]byte, 512)
	for at, s := range map[int]string{0: name, 100: "0000644", 108: "0000000", 116: "0000000",
		124: fmt.Sprintf("%011o", size),
		136: "00000000000", 148: "        ", 156: "0", 257: "ustar\x0000"} {
		copy(h[at:], s)
	}
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	end := 512 + (size+511)/512*512
	if !bytes.Equal(h, b[:512]) || int64(len(b)) < end || len(bytes.Trim(b[512+size:end], "\x00")) > 0 {
		return nil, nil, no("header or padding of %s", name)
	}
	return b[512 : 512+size], b[end:], nil
}

// key is a key of the log. It signs from a size of the log on, and up to where the next key does.
type key struct {
	name string
	pub  []byte
	hash uint32
	from int64
	text string
}

type keyring []key

func verifier(text string) (k key, err error) {
	f := strings.SplitN(text, "+", 3)
	if len(f) != 3 {
		return k, no("key %q", text)
	}
	raw, err := base64.StdEncoding.DecodeString(f[2])
	if err != nil || len(raw) != 33 || raw[0] != 1 {
		return k, no("key %q", text)
	}
	sum := sha256.Sum256(append([]byte(f[0]+"\n"), raw...))
	k = key{name: f[0], pub: raw[1:], hash: binary.BigEndian.Uint32(sum[:4]), text: text}
	if fmt.Sprintf("%s+%08x+%s", k.name, k.hash, base64.StdEncoding.EncodeToString(raw)) != text {
		return k, no("key %q", text)
	}
	return k, nil
}

// note checks a note with one signature, which must be the key's.
func (k key) note(b []byte) error {
	text, sig, ok := strings.Cut(string(b), "\n\n")
	prefix := "— " + k.name + " "
	if !ok || !strings.HasPrefix(sig, prefix) || !strings.HasSuffix(sig, "\n") {
		return no("note")
	}
	b64 := sig[len(prefix) : len(sig)-1]
	raw, err := base64.StdEncoding.DecodeString(b64)
	if err != nil || len(raw) != 68 || base64.StdEncoding.EncodeToString(raw) != b64 ||
		binary.BigEndian.Uint32(raw) != k.hash || !ed25519.Verify(k.pub, []byte(text+"\n"), raw[4:]) {
		return no("signature")
	}
	return nil
}

func chain(b []byte, origin, trusted string) (keyring, error) {
	lines := strings.SplitAfter(string(b), "\n")
	if len(lines) < 2 || lines[len(lines)-1] != "" || len(lines)%6 != 2 {
		return nil, no("keys")
	}
	first, err := verifier(strings.TrimSuffix(lines[0], "\n"))
	if err != nil || first.name != origin || first.text != trusted {
		return nil, no("keys: %v", err)
	}
	all := keyring{first}
	for lines = lines[1:]; len(lines) >= 6; lines = lines[6:] {
		if err := all[len(all)-1].note([]byte(strings.Join(lines[:6], ""))); err != nil {
			return nil, err
		}
		next, err := verifier(strings.TrimSuffix(lines[3], "\n"))
		from, ok := field(strings.TrimSuffix(lines[2], "\n"), "")
		if err != nil || !ok || lines[0] != "coppice-ledger-key/v1\n" || lines[1] != origin+"\n" || next.name != origin ||
			from < all[len(all)-1].from {
			return nil, no("keys: %v", err)
		}
		next.from = from
		all = append(all, next)
	}
	return all, nil
}

// signed checks that one of the keys that may sign at a size did.
func (r keyring) signed(b []byte, size int64) error {
	for i, k := range r {
		if k.from <= size && (i+1 == len(r) || size <= r[i+1].from) && k.note(b) == nil {
			return nil
		}
	}
	return no("no key signed for %d", size)
}

type leaf struct {
	at   int64
	hash hash
}

// follow checks the chain of records.
func follow(b []byte, sandbox string, blobs map[string]bool) (leaves []leaf, last string, err error) {
	last = strings.Repeat("0", 64)
	for len(b) > 0 {
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		var r struct {
			Body struct {
				List   string
				Output []struct{ Blob string }
			}
			Kind, Prev, Sandbox string
			Leaf, Seq           int64
			V                   int
		}
		if err := json.Unmarshal(line, &r); err != nil || !whole {
			return nil, "", no("record %d: %v", len(leaves)+1, err)
		}
		if r.V != 1 || r.Sandbox != sandbox || r.Seq != int64(len(leaves)+1) || r.Prev != last ||
			len(leaves) > 0 && r.Leaf <= leaves[len(leaves)-1].at {
			return nil, "", no("record %d", len(leaves)+1)
		}
		if l := r.Body.List; r.Kind == "program" && l != "" && !blobs[l] {
			return nil, "", no("record %d: list", r.Seq)
		}
		if r.Kind == "exit" {
			for _, o := range r.Body.Output {
				if o.Blob != "" && !blobs[o.Blob] {
					return nil, "", no("record %d: output", r.Seq)
				}
			}
		}
		h := sha256.Sum256(append([]byte{0}, line...))
		leaves, last, b = append(leaves, leaf{r.Leaf, h}), fmt.Sprintf("%x", h), rest
	}
	return leaves, last, nil
}

// tree holds the leaves and the part of the proof that are not used yet.
type tree struct {
	leaves []leaf
	proof  []byte
}

func (t *tree) root(lo, hi int64) (h hash, ok bool) {
	n := hi - lo
	mine := len(t.leaves) > 0 && t.leaves[0].at < hi
	switch {
	case n == 0:
		return sha256.Sum256(nil), true
	case !mine && n&(n-1) == 0:
		if len(t.proof) < 32 {
			return h, false
		}
		copy(h[:], t.proof)
		t.proof = t.proof[32:]
		return h, true
	case n == 1:
		h = t.leaves[0].hash
		t.leaves = t.leaves[1:]
		return h, true
	}
	half := int64(1)
	for half*2 < n {
		half *= 2
	}
	l, ok1 := t.root(lo, lo+half)
	if !ok1 {
		return h, false
	}
	r, ok2 := t.root(lo+half, hi)
	return sha256.Sum256(append(append([]byte{1}, l[:]...), r[:]...)), ok2
}

func sumHex(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

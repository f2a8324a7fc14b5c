package format

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// The files of a bundle, in this order; blobs follow, as blobs/NAME.
const (
	FileManifest    = "manifest"
	FileKeys        = "keys"
	FileCheckpoint  = "checkpoint"
	FileWitness     = "witness"     // a checkpoint with cosignatures; may be absent
	FileConsistency = "consistency" // proofs that the log only grew; may be absent
	FileProof       = "proof"
	FileRecords     = "records.jsonl"
	blobsPrefix     = "blobs/"
)

const manifestTitle = "coppice-ledger-bundle/v1"

// File is a file of a bundle, as its manifest lists it.
type File struct {
	Name  string
	Bytes int64
	Sum   Hash // SHA-256
	Salt  Hash // of a blob: the key for which its name is its HMAC-SHA256; otherwise zero
}

// Manifest lists the content of a bundle. It is signed by the log's key.
type Manifest struct {
	Origin  string
	Sandbox Sandbox
	Records int64    // number of records: all that the sandbox had
	Head    Hash     // hash of the last one; zero for none
	Size    int64    // size of the log, at the checkpoint
	Files   []File   // all but the manifest, in their order in the bundle
	Absent  []string // names of blobs that records name and that are no longer kept
}

// Text returns the text that is signed.
func (m *Manifest) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\nsandbox %s\nrecords %d\nhead %s\nsize %d\n", manifestTitle, m.Origin, m.Sandbox, m.Records,
		m.Head, m.Size)
	for _, f := range m.Files {
		if strings.HasPrefix(f.Name, blobsPrefix) {
			fmt.Fprintf(&b, "blob %d %s %s %s\n", f.Bytes, f.Sum, f.Salt, strings.TrimPrefix(f.Name, blobsPrefix))
		} else {
			fmt.Fprintf(&b, "file %d %s %s\n", f.Bytes, f.Sum, f.Name)
		}
	}
	for _, name := range m.Absent {
		fmt.Fprintf(&b, "absent %s\n", name)
	}
	return b.String()
}

// ParseManifest reads the output of Text. It accepts nothing else.
func ParseManifest(text string) (*Manifest, error) {
	if title, _, _ := strings.Cut(text, "\n"); title != manifestTitle {
		return nil, newer("unknown bundle version %.80q: must be %s", title, manifestTitle)
	}
	bad := fault.New(fault.Corrupt, "not a bundle manifest")
	lines := strings.Split(text, "\n")
	if len(lines) < 7 {
		return nil, bad
	}
	m := &Manifest{Origin: lines[1], Sandbox: Sandbox(strings.TrimPrefix(lines[2], "sandbox "))}
	m.Records = number(strings.TrimPrefix(lines[3], "records "))
	m.Head, _ = ParseHash(strings.TrimPrefix(lines[4], "head "))
	m.Size = number(strings.TrimPrefix(lines[5], "size "))
	for _, line := range lines[6 : len(lines)-1] {
		f := strings.Split(line, " ")
		switch {
		case f[0] == "file" && len(f) == 4:
			sum, _ := ParseHash(f[2])
			m.Files = append(m.Files, File{Name: f[3], Bytes: number(f[1]), Sum: sum})
		case f[0] == "blob" && len(f) == 5:
			sum, _ := ParseHash(f[2])
			salt, _ := ParseHash(f[3])
			m.Files = append(m.Files, File{Name: blobsPrefix + f[4], Bytes: number(f[1]), Sum: sum, Salt: salt})
		case f[0] == "absent" && len(f) == 2:
			m.Absent = append(m.Absent, f[1])
		}
	}
	if m.Text() != text || !m.Sandbox.Valid() {
		return nil, bad
	}
	return m, m.ordered()
}

// number reads a decimal number. For anything else it returns -1, which Text never writes.
func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// ordered checks that the files are known ones, in order, without repetition, and of a possible size.
func (m *Manifest) ordered() error {
	rest := m.Files
	for _, want := range []string{FileKeys, FileCheckpoint, FileWitness, FileConsistency, FileProof, FileRecords} {
		switch {
		case len(rest) > 0 && rest[0].Name == want:
			rest = rest[1:]
		case want != FileWitness && want != FileConsistency:
			return fault.New(fault.Corrupt, "the manifest of a bundle does not list %s in order", want)
		}
	}
	last := ""
	for _, f := range rest {
		if _, err := ParseHash(strings.TrimPrefix(f.Name, blobsPrefix)); err != nil ||
			!strings.HasPrefix(f.Name, blobsPrefix) || f.Name <= last {
			return fault.New(fault.Corrupt, "unexpected file %.80q in the manifest of a bundle", f.Name)
		}
		last = f.Name
	}
	for _, f := range m.Files {
		if f.Bytes > maxFile {
			return fault.New(fault.Corrupt, "invalid size of %.80q in a bundle: %d bytes", f.Name, f.Bytes)
		}
	}
	return nil
}

package format

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Version is the version of records that this build writes and reads.
const Version = 1

// MaxLine is the maximum length of the line of a record, in bytes, without its newline.
const MaxLine = 256 << 10

// Host is the sandbox of records that belong to no sandbox, such as those of keys and of removed ledgers.
const Host Sandbox = "host"

// Sandbox is the id of a sandbox: 12 lower-case hex digits, or Host.
type Sandbox string

var sandboxes = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(host|[0-9a-f]{12})$`) })

// Valid reports whether s is a sandbox id. Only a valid one is used as a file name.
func (s Sandbox) Valid() bool { return sandboxes().MatchString(string(s)) }

// Hash is the hash of a record's line, or of a node of the tree above it.
type Hash [32]byte

// String returns the hash in lower-case hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// ParseHash reads the output of String. It accepts nothing else.
func ParseHash(s string) (h Hash, err error) {
	if len(s) != 2*len(h) || strings.ToLower(s) != s {
		return h, fault.New(fault.Corrupt, "invalid hash %.80q", s)
	}
	if _, err := hex.Decode(h[:], []byte(s)); err != nil {
		return h, fault.New(fault.Corrupt, "invalid hash %.80q", s)
	}
	return h, nil
}

// HashLine returns the hash of a record's line, without its newline: that of a leaf in RFC 6962.
func HashLine(line []byte) Hash { return Hash(tlog.RecordHash(line)) }

// Observer is the source of a record.
type Observer string

// The observers.
const (
	ByKernel  Observer = "kernel"  // reports of the kernel
	ByKeeper  Observer = "keeper"  // the process that owns a running sandbox
	ByGate    Observer = "gate"    // the network of the sandbox
	ByDaemon  Observer = "daemon"  // actions of Coppice itself
	BySandbox Observer = "sandbox" // statements of the inside: not evidence
)

func (o Observer) valid() bool {
	switch o {
	case ByKernel, ByKeeper, ByGate, ByDaemon, BySandbox:
		return true
	}
	return false
}

// Record is one record of the audit log. Its author has redacted its text.
type Record struct {
	Body     Body      // what happened
	Leaf     int64     // position in the host's log, from 0
	Name     string    // the name of the sandbox at the time
	Observer Observer  // the source
	Policy   string    // digest of the policy in force; "" for none
	Prev     Hash      // hash of this sandbox's previous record; zero for the first
	Sandbox  Sandbox   // the owner of the record
	Seq      int64     // position among the sandbox's records, from 1, without gaps
	Tier     string    // tier in force; "" for none
	Time     time.Time // when it was written, UTC
}

// timeLayout is RFC 3339 with all nine digits of nanoseconds, in UTC.
const timeLayout = "2006-01-02T15:04:05.000000000Z"

// envelope is a record as it is written. Its fields are in the order of their names.
type envelope[B any] struct {
	Body     B        `json:"body" jsonschema:"Event; its fields depend on kind"`
	Kind     Kind     `json:"kind" jsonschema:"Kind of the record"`
	Leaf     int64    `json:"leaf" jsonschema:"Position in the log of the host, from 0"`
	Name     string   `json:"name" jsonschema:"Name of the sandbox at the time"`
	Observer Observer `json:"observer" jsonschema:"Observer: kernel, keeper, gate, daemon, or sandbox (a claim of the sandbox, not evidence)"`
	Policy   string   `json:"policy" jsonschema:"Digest of the policy in force; empty for none"`
	Prev     string   `json:"prev" jsonschema:"Hash of the previous record of this sandbox; 64 zeros for the first"`
	Sandbox  Sandbox  `json:"sandbox" jsonschema:"ID of the sandbox: 12 hex digits, or host"`
	Seq      int64    `json:"seq" jsonschema:"Position among the records of this sandbox, from 1, without gaps"`
	Tier     string   `json:"tier" jsonschema:"Tier in force; empty for none"`
	Time     string   `json:"time" jsonschema:"Time of writing: RFC 3339 in UTC with nine digits of nanoseconds"`
	V        int      `json:"v" jsonschema:"Version of the record: 1"`
}

// Encode returns the line of a record, without its newline. Invalid UTF-8 becomes U+FFFD. It returns Invalid for a
// record that Parse would refuse.
func Encode(r *Record) ([]byte, error) {
	line, err := encode(r)
	if err == nil {
		err = readable(r, line)
	}
	if err != nil {
		return nil, fault.New(fault.Invalid, "cannot write the record").Because(err)
	}
	return line, nil
}

// readable returns the reason why Parse would refuse the line of a record that encode returned. It takes a tenth of
// the time of Parse.
func readable(r *Record, line []byte) error {
	body, known := reflect.ValueOf(r.Body), newBody(r.Kind())
	year := r.Time.UTC().Year()
	switch {
	case len(line) > MaxLine:
		return fault.New(fault.Invalid, "it exceeds %d bytes", MaxLine)
	case known == nil || body.Type() != reflect.TypeOf(known) || body.IsNil():
		return fault.New(fault.Invalid, "unknown kind")
	case year < 0 || year > 9999:
		return fault.New(fault.Invalid, "year %d is out of range", year)
	}
	return r.sound()
}

// sound checks the fields that identify a record.
func (r *Record) sound() error {
	if !r.Sandbox.Valid() || !r.Observer.valid() || r.Seq < 1 || r.Leaf < 0 {
		return fault.New(fault.Corrupt, "invalid sandbox, observer, seq or leaf in a record")
	}
	return nil
}

func encode(r *Record) ([]byte, error) {
	if r.Body == nil {
		return nil, errors.New("no body")
	}
	return canonical(envelope[Body]{
		Body: r.Body, Kind: r.Body.Kind(), Leaf: r.Leaf, Name: r.Name, Observer: r.Observer, Policy: r.Policy,
		Prev: r.Prev.String(), Sandbox: r.Sandbox, Seq: r.Seq, Tier: r.Tier,
		Time: r.Time.UTC().Format(timeLayout), V: Version,
	})
}

// Parse reads the line of a record, without its newline. It is strict: a record has exactly one line, and any
// other is refused as Corrupt; a line that a newer version may have written is refused as Version.
func Parse(line []byte) (*Record, error) {
	if len(line) > MaxLine {
		return nil, fault.New(fault.Corrupt, "record exceeds %d bytes", MaxLine)
	}
	var e envelope[json.RawMessage]
	if err := json.Unmarshal(line, &e); err != nil {
		return nil, foreign(line, err)
	}
	if e.V != Version {
		return nil, foreign(line, nil)
	}
	body := newBody(e.Kind)
	if body == nil {
		return nil, newer("unknown record kind %.80q", e.Kind)
	}
	if err := json.Unmarshal(e.Body, body); err != nil {
		return nil, foreign(line, err)
	}
	prev, err := ParseHash(e.Prev)
	if err != nil {
		return nil, err
	}
	at, err := time.Parse(timeLayout, e.Time)
	if err != nil {
		return nil, fault.New(fault.Corrupt, "invalid record time %.80q", e.Time)
	}
	r := &Record{Body: body, Leaf: e.Leaf, Name: e.Name, Observer: e.Observer, Policy: e.Policy,
		Prev: prev, Sandbox: e.Sandbox, Seq: e.Seq, Tier: e.Tier, Time: at}
	if err := r.sound(); err != nil {
		return nil, err
	}
	again, err := encode(r)
	if err != nil || !bytes.Equal(again, line) { // this also finds unknown fields
		return nil, foreign(line, errors.Join(err, strict(line, &e), strict(e.Body, newBody(e.Kind))))
	}
	return r, nil
}

// foreign returns why a line could not be read: it is of another version, has a field that only another
// version can have, or is damaged.
func foreign(line []byte, err error) error {
	var v struct{ V int }
	if json.Unmarshal(line, &v) == nil && v.V != Version {
		return newer("unknown record version %d: must be %d", v.V, Version)
	}
	if err != nil && strings.Contains(err.Error(), "unknown field") {
		return newer("unknown field in a record").Because(err)
	}
	return fault.New(fault.Corrupt, "not a record in canonical form").Because(err)
}

func newer(msg string, args ...any) *fault.Error {
	return fault.New(fault.Version, msg, args...).
		WithHint("read it with the version of Coppice that wrote it, or a newer one")
}

// strict reads one JSON value without unknown fields, which must be the whole input.
func strict(b []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("trailing data after the record")
	}
	return nil
}

// canonical returns the JSON of a value by RFC 8785. The fields of the value must be declared in the order of their
// names, and its numbers must be integers. The standard library escapes three characters that the RFC does not.
func canonical(v any) ([]byte, error) {
	b := bytes.NewBuffer(make([]byte, 0, 1024))
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	line := bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
	if !bytes.Contains(line, []byte(`\u2`)) && !bytes.Contains(line, []byte(`\uf`)) {
		return line, nil
	}
	plain := make([]byte, 0, len(line))
	for i := 0; i < len(line); i++ {
		if line[i] != '\\' {
			plain = append(plain, line[i])
			continue
		}
		if c, ok := unescaped[string(line[i:min(i+6, len(line))])]; ok {
			plain, i = append(plain, c...), i+5
			continue
		}
		plain, i = append(plain, line[i], line[i+1]), i+1
	}
	return plain, nil
}

var unescaped = map[string]string{`\u2028`: "\u2028", `\u2029`: "\u2029", `\ufffd`: "\ufffd"}

// Kind returns the kind of the record's body.
func (r *Record) Kind() Kind { return r.Body.Kind() }

package repo

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

const (
	maxLine = 4 << 10 // bytes of one line of a bundle's header
	maxRefs = 1000    // references, and prerequisites, of one bundle
)

// bundle is the header of a git bundle; the pack follows.
type bundle struct {
	format Format
	needs  []OID
	refs   map[Ref]OID
	head   OID // of HEAD; "" if the bundle does not have it
}

// readBundle parses a bundle's header strictly, up to its pack. All of it is untrusted: one reference with an
// invalid name makes the whole bundle Invalid.
func readBundle(br *bufio.Reader) (bundle, error) {
	b := bundle{format: SHA1, refs: map[Ref]OID{}}
	first, err := line(br)
	if err != nil {
		return b, err
	}
	if first != "# v2 git bundle" && first != "# v3 git bundle" {
		return b, fault.New(fault.Invalid, "invalid bundle from the sandbox: not a git bundle")
	}
	for n := 0; ; n++ {
		l, err := line(br)
		switch {
		case err != nil:
			return b, err
		case l == "":
			return b, nil
		case n > 2*maxRefs:
			return b, fault.New(fault.Invalid, "the bundle has more than %d references", maxRefs)
		case l[0] == '@' && first == "# v3 git bundle":
			f, ok := strings.CutPrefix(l, "@object-format=")
			if !ok || f != string(SHA1) && f != string(SHA256) {
				return b, fault.New(fault.Unsupported, "unsupported bundle capability %q", clip(l))
			}
			b.format = Format(f)
		default:
			if err := b.add(l); err != nil {
				return b, err
			}
		}
	}
}

// add parses the line of a prerequisite or of a reference.
func (b *bundle) add(l string) error {
	rest, need := strings.CutPrefix(l, "-")
	hex, name, _ := strings.Cut(rest, " ")
	id, err := ParseOID(hex)
	if err == nil && len(id) != b.format.digits() {
		err = fault.New(fault.Invalid, "invalid object name %q: not of the bundle's object format", id)
	}
	if err != nil {
		return err
	}
	if need {
		b.needs = append(b.needs, id)
		return nil
	}
	if name == "HEAD" {
		if b.head != "" {
			return fault.New(fault.Invalid, "duplicate HEAD in the bundle")
		}
		b.head = id
		return nil
	}
	ref, err := ParseRef(name)
	if err != nil {
		return err
	}
	if _, twice := b.refs[ref]; twice {
		return fault.New(fault.Invalid, "duplicate reference %s in the bundle", ref)
	}
	b.refs[ref] = id
	return nil
}

// line reads a line and strips its newline.
func line(br *bufio.Reader) (string, error) {
	var l []byte
	for {
		c, err := br.ReadByte()
		switch {
		case errors.Is(err, io.EOF):
			return "", fault.New(fault.Invalid, "truncated bundle header")
		case err != nil:
			return "", fault.Wrap(err, "read the bundle")
		case c == '\n':
			return string(l), nil
		case len(l) == maxLine:
			return "", fault.New(fault.Invalid, "line of the bundle header is too long")
		}
		l = append(l, c)
	}
}

// packObjects returns the number of objects that the following pack declares, without consuming it.
func packObjects(br *bufio.Reader) (int64, error) {
	h, err := br.Peek(12)
	if err != nil {
		return 0, fault.New(fault.Invalid, "the bundle has no pack")
	}
	if v := binary.BigEndian.Uint32(h[4:]); string(h[:4]) != "PACK" || v != 2 {
		return 0, fault.New(fault.Invalid, "the bundle has no pack of version 2")
	}
	return int64(binary.BigEndian.Uint32(h[8:])), nil
}

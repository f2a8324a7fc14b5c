package format

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Encode writes the manifest of a layer. Entries must be in the order of Less,
// the root first.
func Encode(ctx context.Context, w io.Writer, entries []Entry) error {
	b := make([]byte, 0, 32<<10)
	b = append(b, magicOf(entries)...)
	b = append(b, '\n')
	for i := range entries {
		b = appendEntry(b, &entries[i])
		if len(b) > 24<<10 {
			if err := ctx.Err(); err != nil {
				return err
			}
			if _, err := w.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	b = append(b, "end "...)
	b = strconv.AppendInt(b, int64(len(entries)), 10)
	b = append(b, '\n')
	_, err := w.Write(b)
	return err
}

// magicOf returns the first line of the manifest with these entries.
func magicOf(entries []Entry) string {
	if slices.ContainsFunc(entries, func(e Entry) bool { return e.Sparse }) {
		return magicSparse
	}
	return Magic
}

func appendEntry(b []byte, e *Entry) []byte {
	kind := byte(e.Type)
	if e.Sparse {
		kind = sparseFile
	}
	b = append(b, kind, ' ')
	b = quote(b, e.Path)
	switch e.Type {
	case Whiteout:
		return append(b, '\n')
	case Hardlink:
		b = append(b, ' ')
		b = quote(b, e.Link)
		return append(b, '\n')
	}
	b = append(b, ' ')
	b = strconv.AppendUint(b, uint64(e.Mode), 8)
	for _, n := range [...]int64{int64(e.UID), int64(e.GID), e.Mtime} {
		b = append(b, ' ')
		b = strconv.AppendInt(b, n, 10)
	}
	switch e.Type {
	case File:
		b = append(b, ' ')
		b = strconv.AppendInt(b, e.Size, 10)
		b = append(b, ' ')
		b = hex.AppendEncode(b, e.Sum[:])
	case Symlink:
		b = append(b, ' ')
		b = quote(b, e.Link)
	case Char, Block:
		b = fmt.Appendf(b, " %d %d", e.Major, e.Minor)
	}
	b = append(b, '\n')
	for _, x := range e.Xattrs {
		b = append(b, "x "...)
		b = quote(b, x.Key)
		b = append(b, ' ')
		b = quote(b, x.Value)
		b = append(b, '\n')
	}
	return b
}

// quote writes s with every byte outside "!" to "~", and "%" itself, as %XX, and
// the empty string as a lone "%".
func quote(b []byte, s string) []byte {
	if s == "" {
		return append(b, '%')
	}
	const digits = "0123456789ABCDEF"
	for i := range len(s) {
		if c := s[i]; c > ' ' && c < 0x7f && c != '%' {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return b
}

func unquote(s string) (string, bool) {
	if s == "%" {
		return "", true
	}
	if !strings.Contains(s, "%") {
		return s, s != ""
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		v, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b = append(b, byte(v))
		i += 2
	}
	return string(b), true
}

// Parse reads a manifest and accepts exactly what Encode writes: encoding the result gives the same bytes. It
// returns Version for an unknown version, the error of ctx, and otherwise Corrupt.
func Parse(ctx context.Context, data []byte) ([]Entry, error) {
	line, rest, ok := bytes.Cut(data, []byte{'\n'})
	if first := string(line); !ok || first != Magic && first != magicSparse {
		if strings.HasPrefix(first, "coppice layer ") && len(first) < 40 {
			return nil, fault.New(fault.Version, "layer manifest has version %q; this build knows \"1\" and \"2\"",
				first[len("coppice layer "):]).
				WithHint("use the build of coppice that wrote it")
		}
		return nil, fault.New(fault.Corrupt, "not a layer manifest")
	}
	var out []Entry
	for n := 2; ; n++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		line, rest, ok = bytes.Cut(rest, []byte{'\n'})
		if !ok {
			return nil, fault.New(fault.Corrupt, "manifest ends in line %d", n)
		}
		if bytes.HasPrefix(line, []byte("end ")) {
			break
		}
		if err := parseLine(string(line), &out); err != nil {
			return nil, fault.New(fault.Corrupt, "manifest line %d", n).Because(err)
		}
	}
	if err := check(ctx, out); err != nil {
		return nil, malformed(ctx, "manifest", err)
	}
	again := same{rest: data}
	if err := Encode(ctx, &again, out); err != nil || len(again.rest) > 0 {
		return nil, malformed(ctx, "manifest is not in canonical form", err)
	}
	return out, nil
}

// malformed returns the error of a bad manifest, or that of ctx if it is canceled.
func malformed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fault.New(fault.Corrupt, "%s", what).Because(err)
}

// same is a writer that fails unless the written bytes are the next ones of rest.
type same struct{ rest []byte }

func (s *same) Write(p []byte) (int, error) {
	rest, ok := bytes.CutPrefix(s.rest, p)
	if !ok {
		return 0, errors.New("does not match the encoding of its entries")
	}
	s.rest = rest
	return len(p), nil
}

func parseLine(line string, out *[]Entry) error {
	f := strings.Split(line, " ")
	p := fields{f: f[1:]}
	if f[0] == "x" {
		if len(*out) == 0 {
			return fmt.Errorf("attribute without an entry")
		}
		e := &(*out)[len(*out)-1]
		if e.Type == Whiteout || e.Type == Hardlink {
			return fmt.Errorf("entry of type %c cannot have attributes", e.Type)
		}
		e.Xattrs = append(e.Xattrs, Xattr{p.text(), p.text()})
		return p.end()
	}
	if len(f[0]) != 1 || !strings.Contains("dofFhlpscbw", f[0]) {
		return fmt.Errorf("unknown type %q", f[0])
	}
	e := Entry{Type: Type(f[0][0]), Path: p.text()}
	if e.Type == sparseFile {
		e.Type, e.Sparse = File, true
	}
	switch e.Type {
	case Whiteout:
	case Hardlink:
		e.Link = p.text()
	default:
		e.Mode = uint32(p.num(8, 12))
		e.UID, e.GID = uint32(p.num(10, 32)), uint32(p.num(10, 32))
		e.Mtime = p.signed()
	}
	switch e.Type {
	case File:
		e.Size = int64(p.num(10, 63))
		sum, err := hex.DecodeString(p.next())
		if err != nil || len(sum) != len(e.Sum) {
			return fmt.Errorf("malformed digest")
		}
		copy(e.Sum[:], sum)
	case Symlink:
		e.Link = p.text()
	case Char, Block:
		e.Major, e.Minor = uint32(p.num(10, 32)), uint32(p.num(10, 32))
	}
	*out = append(*out, e)
	return p.end()
}

// fields decodes the fields of a line one by one. After a failure err is set.
type fields struct {
	f   []string
	err error
}

func (p *fields) next() string {
	if len(p.f) == 0 {
		p.err = fmt.Errorf("fields are missing")
		return ""
	}
	s := p.f[0]
	p.f = p.f[1:]
	return s
}

func (p *fields) text() string {
	s, ok := unquote(p.next())
	if !ok && p.err == nil {
		p.err = fmt.Errorf("malformed text")
	}
	return s
}

func (p *fields) num(base, bits int) uint64 {
	n, err := strconv.ParseUint(p.next(), base, bits)
	if err != nil && p.err == nil {
		p.err = err
	}
	return n
}

func (p *fields) signed() int64 {
	n, err := strconv.ParseInt(p.next(), 10, 64)
	if err != nil && p.err == nil {
		p.err = err
	}
	return n
}

func (p *fields) end() error {
	if p.err == nil && len(p.f) > 0 {
		return fmt.Errorf("too many fields")
	}
	return p.err
}

// check returns an error unless the entries can be a layer: the root first, in order, each below a directory,
// hard links to earlier files, attributes in order.
func check(ctx context.Context, entries []Entry) error {
	if len(entries) == 0 || entries[0].Path != "" || !entries[0].IsDir() {
		return fmt.Errorf("does not begin with the root directory")
	}
	dirs := []string{""}
	files := map[string]Type{}
	for i := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		e := &entries[i]
		for j := 1; j < len(e.Xattrs); j++ {
			if e.Xattrs[j-1].Key >= e.Xattrs[j].Key {
				return fmt.Errorf("attributes of %q are out of order", e.Path)
			}
		}
		if i == 0 {
			continue
		}
		if !validPath(e.Path) {
			return fmt.Errorf("malformed path %q", e.Path)
		}
		if !Less(entries[i-1].Path, e.Path) {
			return fmt.Errorf("path %q is out of order", e.Path)
		}
		parent, _, _ := cutLast(e.Path)
		for len(dirs) > 0 && dirs[len(dirs)-1] != parent {
			dirs = dirs[:len(dirs)-1]
		}
		if len(dirs) == 0 {
			return fmt.Errorf("path %q has no parent directory", e.Path)
		}
		switch e.Type {
		case Dir, Opaque:
			dirs = append(dirs, e.Path)
		case Hardlink:
			if t, ok := files[e.Link]; !ok || t == Whiteout {
				return fmt.Errorf("%q is a hard link to %q, which is not an earlier file", e.Path, e.Link)
			}
		default:
			files[e.Path] = e.Type
		}
	}
	return nil
}

func cutLast(p string) (dir, name string, ok bool) {
	i := strings.LastIndexByte(p, '/')
	if i < 0 {
		return "", p, false
	}
	return p[:i], p[i+1:], true
}

func validPath(p string) bool {
	for name := range strings.SplitSeq(p, "/") {
		if name == "" || name == "." || name == ".." || len(name) > 255 || strings.IndexByte(name, 0) >= 0 {
			return false
		}
	}
	return true
}

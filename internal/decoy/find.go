package decoy

import (
	"bytes"
	"cmp"
	b32 "encoding/base32"
	b64 "encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"
)

// Token is a token to search for.
type Token struct {
	Path string `json:"path"` // path of the decoy that contains it
	Text string `json:"text"` // at least LeastToken characters
}

// Finder finds tokens in data: verbatim, in base64, in hexadecimal and URL-escaped, and in host names also in base32.
// It finds any Piece consecutive characters of a form. It is immutable, and safe for concurrent use.
type Finder struct {
	paths  []string // paths of decoys, by the numbers of forms
	words  []word   // sorted by text
	filter []uint64 // a bit for each hash of a word in words
}

// Piece is the number of consecutive characters of a form that are always found, at any offset. Fewer than 16 are never
// found.
const Piece = 2*wordSize + step - 1

// Every step bytes of a stream, the next wordSize bytes are looked up among all such words of the forms of tokens;
// two consecutive words of a form are a match.
const (
	wordSize   = 8
	step       = 4
	filterBits = 20
	longest    = 64 // maximum length of the part of a token that is searched for
)

// word is eight characters of a form, and their place in it.
type word struct {
	text uint64
	form uint16
	at   uint16
}

// NewFinder returns a Finder for tokens; nil if tokens is empty.
func NewFinder(tokens []Token) *Finder { return newFinder(tokens, forms) }

// NewNameFinder returns a Finder for host names, which are in lower case and split into labels: pass them to In without
// dots.
func NewNameFinder(tokens []Token) *Finder { return newFinder(tokens, nameForms) }

func newFinder(tokens []Token, forms func(string) []string) *Finder {
	if len(tokens) == 0 {
		return nil
	}
	f := &Finder{filter: make([]uint64, 1<<filterBits/64)}
	for _, t := range tokens {
		text := t.Text[:min(len(t.Text), longest)]
		for _, form := range forms(text) {
			n := len(f.paths)
			f.paths = append(f.paths, t.Path)
			for at := 0; at+wordSize <= len(form); at++ {
				w := word{binary.LittleEndian.Uint64([]byte(form[at:])), uint16(n), uint16(at)}
				f.words = append(f.words, w)
				h := hash(w.text)
				f.filter[h/64] |= 1 << (h % 64)
			}
		}
	}
	slices.SortFunc(f.words, func(a, b word) int { return cmp.Compare(a.text, b.text) })
	return f
}

func hash(w uint64) uint64 { return w * 0x9e3779b97f4a7c15 >> (64 - filterBits) }

// forms returns the forms in which a token may be sent.
func forms(t string) []string {
	all := []string{t, url.QueryEscape(t), url.PathEscape(t), lowerEscapes(url.QueryEscape(t)),
		hex.EncodeToString([]byte(t)), strings.ToUpper(hex.EncodeToString([]byte(t)))}
	for skip := range 3 {
		s := within(b64.StdEncoding.EncodeToString, t, skip, 3, 4)
		all = append(all, s, strings.NewReplacer("+", "-", "/", "_").Replace(s), url.QueryEscape(s))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// nameForms returns the forms in which a token may be in a looked-up name.
func nameForms(t string) []string {
	all := forms(t)
	for skip := range 5 {
		all = append(all, within(b32.StdEncoding.EncodeToString, t, skip, 5, 8),
			within(b32.HexEncoding.EncodeToString, t, skip, 5, 8))
	}
	for i := range all {
		all[i] = strings.ReplaceAll(strings.ToLower(all[i]), ".", "")
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// within returns the part of the encoding of t that does not depend on its surroundings, if t starts skip bytes into a
// block. The encoding converts blocks of from bytes to to characters.
func within(encode func([]byte) string, t string, skip, from, to int) string {
	bits := 8 * from / to // of one character
	s := encode(append(make([]byte, skip), t...))
	return s[(skip*8+bits-1)/bits : (skip+len(t))*8/bits]
}

// lowerEscapes writes %2F as %2f.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:], bytes.ToLower(b[i+1:i+3]))
		}
	}
	return string(b)
}

// at returns the words whose text is w.
func (f *Finder) at(w uint64) []word {
	if h := hash(w); f.filter[h/64]>>(h%64)&1 == 0 {
		return nil
	}
	i, found := slices.BinarySearchFunc(f.words, w, func(a word, w uint64) int { return cmp.Compare(a.text, w) })
	if !found {
		return nil
	}
	end := i
	for end < len(f.words) && f.words[end].text == w {
		end++
	}
	return f.words[i:end]
}

// In searches b, and returns the path of the decoy whose token it contains. A nil Finder finds nothing.
func (f *Finder) In(b []byte) (path string, found bool) {
	if f == nil {
		return "", false
	}
	s := Stream{f: f}
	return s.Find(b)
}

// InName searches a host name.
func (f *Finder) InName(name string) (path string, found bool) {
	return f.In([]byte(strings.ReplaceAll(strings.ToLower(name), ".", "")))
}

// Stream searches a stream part by part. It is not safe for concurrent use.
type Stream struct {
	f        *Finder
	rest     [wordSize - 1]byte // bytes at which a word may start in the next part
	n        int                // length of rest
	ago, now []word             // matches of the words two steps and one step before
}

// Stream starts the search of a stream. It is nil for a nil Finder, and then finds nothing.
func (f *Finder) Stream() *Stream {
	if f == nil {
		return nil
	}
	return &Stream{f: f}
}

// Find searches the next part, and returns the path of the decoy of a token that ends in this part.
func (s *Stream) Find(b []byte) (path string, found bool) {
	if s == nil {
		return "", false
	}
	// Words that start in the rest of the previous part.
	var seam [2 * (wordSize - 1)]byte
	n := copy(seam[:], s.rest[:s.n])
	n += copy(seam[n:], b[:min(len(b), wordSize-1)])
	i := 0
	for ; i < s.n && i+wordSize <= n; i += step {
		if path, found = s.look(binary.LittleEndian.Uint64(seam[i:])); found {
			return path, true
		}
	}
	if i < s.n { // the part is too short to complete these words
		s.n = copy(s.rest[:], seam[i:n])
		return "", false
	}
	i -= s.n
	for ; i+wordSize <= len(b); i += step {
		if path, found = s.look(binary.LittleEndian.Uint64(b[i:])); found {
			return path, true
		}
	}
	s.n = copy(s.rest[:], b[min(i, len(b)):])
	return "", false
}

func (s *Stream) look(w uint64) (path string, found bool) {
	got := s.f.at(w)
	before := s.ago
	s.ago, s.now = s.now, got
	if before == nil || got == nil {
		return "", false
	}
	for _, a := range before {
		for _, b := range got {
			if a.form == b.form && b.at == a.at+wordSize {
				return s.f.paths[b.form], true
			}
		}
	}
	return "", false
}

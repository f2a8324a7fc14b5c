package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth is how deep objects and arrays may be nested in a body.
const maxDepth = 100

var errJSON = errors.New("the body is not valid JSON")

// document is a JSON text (RFC 8259) that is read from front to back.
type document struct {
	text       []byte
	at         int
	keys       []string // where to: the rest of a pointer, while the way is right
	begin, end int      // of the string there; an end of 0 means that there is none
}

// findJSON returns where the string at a pointer is in a JSON text, with its quotes, and what it says. An end of 0
// means that there is none. The whole text must be valid, and no object on the way may have a member twice.
func findJSON(text []byte, pointer string) (begin, end int, says string, err error) {
	if !utf8.Valid(text) {
		return 0, 0, "", errors.New("the body is not in UTF-8")
	}
	d := document{text: text}
	for key := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		d.keys = append(d.keys, strings.NewReplacer("~1", "/", "~0", "~").Replace(key))
	}
	d.space()
	if err := d.value(true, 0); err != nil {
		return 0, 0, "", err
	}
	if d.space(); d.at < len(text) {
		return 0, 0, "", errJSON
	}
	if d.end == 0 {
		return 0, 0, "", nil
	}
	says, err = unquoted(text[d.begin:d.end])
	return d.begin, d.end, says, err
}

// value reads a value. way says that the pointer leads to it, or into it.
func (d *document) value(way bool, depth int) error {
	if depth > maxDepth {
		return errors.New("the body is nested too deep")
	}
	switch c := d.peek(); {
	case c == '{':
		return d.object(way && depth < len(d.keys), depth)
	case c == '[':
		return d.array(way && depth < len(d.keys), depth)
	case c == '"':
		begin := d.at
		err := d.string()
		if way && depth == len(d.keys) {
			d.begin, d.end = begin, d.at
		}
		return err
	case c == '-' || '0' <= c && c <= '9':
		return d.number()
	}
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(d.text[d.at:], []byte(word)) {
			d.at += len(word)
			return nil
		}
	}
	return errJSON
}

func (d *document) object(way bool, depth int) error {
	seen := map[string]bool{}
	return d.members('}', func(int) error {
		begin := d.at
		if d.peek() != '"' {
			return errJSON
		}
		if err := d.string(); err != nil {
			return err
		}
		on := false
		if way {
			name, err := unquoted(d.text[begin:d.at])
			if err != nil {
				return err
			}
			if seen[name] {
				return errors.New("an object in the body has a member twice")
			}
			seen[name] = true
			on = name == d.keys[depth]
		}
		if d.space(); d.peek() != ':' {
			return errJSON
		}
		d.at++
		d.space()
		return d.value(on, depth+1)
	})
}

func (d *document) array(way bool, depth int) error {
	return d.members(']', func(i int) error { return d.value(way && d.keys[depth] == strconv.Itoa(i), depth+1) })
}

// members reads what is between brackets, with commas.
func (d *document) members(end byte, one func(i int) error) error {
	d.at++
	if d.space(); d.peek() == end {
		d.at++
		return nil
	}
	for i := 0; ; i++ {
		d.space()
		if err := one(i); err != nil {
			return err
		}
		d.space()
		switch c := d.peek(); {
		case c == end:
			d.at++
			return nil
		case c != ',':
			return errJSON
		}
		d.at++
	}
}

// string reads a string up to its closing quote.
func (d *document) string() error {
	for d.at++; d.at < len(d.text); d.at++ {
		switch c := d.text[d.at]; {
		case c == '"':
			d.at++
			return nil
		case c < ' ':
			return errJSON
		case c == '\\':
			d.at++
			switch e := d.peek(); {
			case e == 'u':
				if len(d.text)-d.at < 5 || strings.Trim(string(d.text[d.at+1:d.at+5]), "0123456789abcdefABCDEF") != "" {
					return errJSON
				}
				d.at += 4
			case strings.IndexByte(`"\/bfnrt`, e) < 0:
				return errJSON
			}
		}
	}
	return errJSON
}

// number reads a number.
func (d *document) number() error {
	begin := d.at
	for strings.IndexByte("0123456789+-.eE", d.peek()) >= 0 {
		d.at++
	}
	if !json.Valid(d.text[begin:d.at]) {
		return errJSON
	}
	return nil
}

func (d *document) space() {
	for strings.IndexByte(" \t\r\n", d.peek()) >= 0 {
		d.at++
	}
}

// peek returns the next byte; at the end, one that JSON does not have.
func (d *document) peek() byte {
	if d.at < len(d.text) {
		return d.text[d.at]
	}
	return 0xff
}

// unquoted returns what a string says.
func unquoted(text []byte) (s string, err error) {
	if json.Unmarshal(text, &s) != nil {
		return "", errJSON
	}
	return s, nil
}

// quoted returns a string of JSON that says s.
func quoted(s string) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(s)
	return strings.TrimSuffix(b.String(), "\n"), err
}

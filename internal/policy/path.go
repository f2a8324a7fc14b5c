package policy

import (
	"path"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/visible"
)

// Path is a path on the host or inside: absolute, below the home ("~/x"), or, if its file has no absolute name,
// relative ("./x"). It is clean, never goes up, and may end in /*, which matches everything in a directory. The zero
// Path is empty.
type Path struct{ text string }

const pathHint = "use a path such as /etc/x, ~/x or ./x; a * is only valid as the last part"

// ParsePath parses a path; dir is the directory that ./x is relative to.
func ParsePath(s, dir string) (Path, error) {
	no := func(why string) (Path, error) {
		return Path{}, fault.New(fault.Invalid, "invalid path %q: %s", s, why).WithHint(pathHint)
	}
	text := s
	switch {
	case s == "":
		return no("it is empty")
	case s == "~", strings.HasPrefix(s, "~/"):
	case s[0] == '~':
		return no("only ~/ is supported for a home directory")
	case s == ".", strings.HasPrefix(s, "./"):
		if text = path.Join(dir, s); !path.IsAbs(text) {
			text = "./" + text
		}
	case s[0] != '/':
		return no("it must begin with /, ~/ or ./")
	}
	for _, part := range []string{s, text} {
		for _, c := range part {
			if !visible.Rune(c) {
				return no("it contains an invisible character")
			}
		}
		last := strings.HasSuffix(part, "/*")
		switch fixed := strings.TrimSuffix(part, "/*"); {
		case strings.ContainsAny(fixed, `*?[]{}\`), last && strings.HasSuffix(fixed, "/"):
			return no("a * is only valid as the whole last part")
		case last && (fixed == "" || fixed == "~"):
			return no("it is the whole root")
		case strings.Contains("/"+part+"/", "/../"):
			return no("it contains ..")
		}
	}
	if text[0] == '.' {
		if text = path.Clean(text); text != "." {
			text = "./" + text
		}
	} else {
		text = path.Clean(text)
	}
	return Path{text}, nil
}

// String returns p in the form that ParsePath parses.
func (p Path) String() string { return p.text }

// IsZero reports whether p is the zero Path.
func (p Path) IsZero() bool { return p.text == "" }

// MarshalText returns p in the form that ParsePath parses.
func (p Path) MarshalText() ([]byte, error) { return []byte(p.text), nil }

// beneath reports whether p is o or below it, by comparing the texts alone.
func (p Path) beneath(o Path) bool {
	within, all := strings.CutSuffix(o.text, "/*")
	within = strings.TrimSuffix(within, "/") + "/"
	switch {
	case p == o:
		return true
	case all:
		return strings.HasPrefix(p.text, within)
	}
	return strings.HasPrefix(p.text+"/", within)
}

// in returns p with home in place of ~; with home "" it returns p.
func (p Path) in(home string) Path {
	if below, ok := strings.CutPrefix(p.text, "~"); ok && home != "" {
		return Path{strings.TrimSuffix(path.Clean(home), "/") + below}
	}
	return p
}

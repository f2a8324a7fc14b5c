package timeline

import (
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// MaxName is the maximum length of a sandbox's name or a tag, in bytes.
const MaxName = 63

// ValidName checks the name of a sandbox: [a-z0-9][a-z0-9_.-]{0,62}, except names that look like an id. The error is
// Invalid and gives the reason.
func ValidName(name string) error { return validName("sandbox name", name) }

// ValidTag checks a tag: the rule for a sandbox's name, and not "head". A tag may look like the beginning of an id;
// Resolve then prefers the tag.
func ValidTag(tag string) error {
	if strings.EqualFold(tag, "HEAD") {
		return fault.New(fault.Invalid, "invalid tag %q: HEAD is reserved", tag).
			WithHint("choose another tag")
	}
	return validName("tag", tag)
}

func validName(what, name string) error {
	hint := "use 1 to 63 of a-z 0-9 _ . - and begin with a letter or digit, for example web-1"
	switch {
	case name == "":
		return fault.New(fault.Invalid, "%s is empty", what).WithHint("%s", hint)
	case len(name) > MaxName:
		return fault.New(fault.Invalid, "invalid %s %.20q...: longer than %d bytes", what, name, MaxName).WithHint("%s", hint)
	case isHex(name, snapshotDigits):
		return fault.New(fault.Invalid, "invalid %s %q: it looks like an id", what, name).WithHint("%s", hint)
	}
	// Everything before i is ASCII, so bytes and characters have the same positions.
	for i, c := range name {
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || !strings.ContainsRune("_.-", c)) {
			return fault.New(fault.Invalid, "invalid %s %q: %q is not allowed at position %d", what, name, c, i+1).
				WithHint("%s", hint)
		}
	}
	return nil
}

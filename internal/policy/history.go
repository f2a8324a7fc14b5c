package policy

import (
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// historyShape is the shape of the history section, which is read into fields of a Document.
func historyShape(dir string) shape[Document] {
	ignored := matching(text("a path", func(s string) (Path, error) { return ignoredPath(s, dir) }), pathForm)
	return object(nothing[Document],
		key("ignore", "Directories whose content no snapshot contains. They are empty at first. Without effect in a "+
			"project's file.", list(said(ignored), 0), func(d *Document, v []Said[Path]) { d.Ignore = v }),
	)
}

// ignoredPath parses a path to ignore; dir is the directory that ./x is relative to.
func ignoredPath(s, dir string) (Path, error) {
	p, err := ParsePath(s, dir)
	switch {
	case err != nil:
		return Path{}, err
	case p.text == "/", strings.HasSuffix(p.text, "/*"):
		return Path{}, fault.New(fault.Invalid, "cannot ignore %q: it is not a single directory in the root", s).
			WithHint("use a path such as ./node_modules or ~/.cache")
	}
	return p, nil
}

// history merges the history sections. An ignored path leaves less evidence, so a project's file can only ask for it.
func (m *merger) history(said [3]Document) {
	granted := slices.Concat(said[User].Ignore, said[Flags].Ignore)
	for _, s := range said[Project].Ignore {
		if m.covering(granted, s.Value) == nil {
			m.note(s.At, "cannot ignore %s: a project's file cannot leave paths out of the history; "+
				"to allow it, use --ignore %[1]s", s.Value)
		}
	}
	m.p.Ignore = unique(granted, Path.String)
}

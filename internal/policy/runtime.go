package policy

import (
	"cmp"
	"path"
	"regexp"

	"github.com/coppice-dev/coppice/internal/fault"
)

// DefaultRuntime is the OCI runtime of tier container where none is chosen.
const DefaultRuntime = "runc"

// Runtimes returns the names of the OCI runtimes that a probe of the host looks for, the default first.
func Runtimes() []string { return []string{DefaultRuntime, "crun", "youki"} }

// runtimeForm matches the name of a program, or an absolute path.
const runtimeForm = `^(/[^\x00-\x1f\x7f]+|[A-Za-z0-9][A-Za-z0-9._-]*)$`

var runtimes = regexp.MustCompile(runtimeForm)

// ParseRuntime checks the name or the absolute path of an OCI runtime.
func ParseRuntime(s string) (string, error) {
	if !runtimes.MatchString(s) || len(s) > 4096 || s[0] == '/' && (path.Clean(s) != s || s == "/") {
		return "", fault.New(fault.Invalid, "invalid OCI runtime %q", s).
			WithHint("use a name, such as runc or crun, or an absolute path")
	}
	return s, nil
}

// containerShape is the shape of the container section, which is read into a field of a Document.
func containerShape() shape[Document] {
	return object(nothing[Document],
		key("runtime", "The OCI runtime: a name, which is looked up in the daemon's PATH, or an absolute path. "+
			"Default: "+DefaultRuntime+".",
			said(matching(text("the name of a program, or an absolute path", ParseRuntime), runtimeForm)),
			func(d *Document, v Said[string]) { d.Runtime = &v }),
	)
}

// runtime merges the settings of the OCI runtime; fromProject refuses that of a project's file.
func (m *merger) runtime(said [3]Document) {
	for level, d := range said {
		if d.Runtime != nil && Level(level) != Project {
			m.p.Runtime = *d.Runtime
		}
	}
}

// runtimeOf returns the OCI runtime of a policy.
func runtimeOf(p Policy) string { return cmp.Or(p.Runtime.Value, DefaultRuntime) }

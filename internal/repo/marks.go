package repo

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// Mark marks a changed path that the host would later run or trust.
type Mark struct {
	Path string
	Kind Kind
	Why  string
}

// maxLook is the maximum size of a file that is examined, in bytes. A larger one counts as changed in every
// respect.
const maxLook = 1 << 20

// looks reports whether marks of a change depend on the file's content.
func looks(c Change) bool {
	_, manifest := manifests[base(c.Path)]
	return c.Mode == ModeLink || c.Mode != 0 && (manifest || base(c.Path) == "head" || base(c.Path) == "config")
}

// base is the folded last name of a path.
func base(p string) string {
	parts := names(p)
	if len(parts) == 0 {
		return ""
	}
	return parts[len(parts)-1]
}

// marks returns the marks of one change. If looks is true, before and after are the old and new content, nil if the
// file is absent or larger than maxLook. It is pure. A rename is passed as a deletion and an addition.
func marks(c Change, before, after []byte) []Mark {
	var all []Mark
	mark := func(k Kind, why string) { all = append(all, Mark{c.Path, k, why}) }
	for _, r := range byName(c.Path) {
		mark(r.kind, r.why)
	}
	switch {
	case c.Mode == ModeSubmodule:
		mark(KindSubmodule, "a commit of another repository, which git would fetch and check out")
	case c.Mode == ModeLink:
		if why := leaves(c.Path, after); why != "" {
			mark(KindLink, why)
		}
	case c.Mode == ModeExecutable && c.OldMode != ModeExecutable:
		mark(KindExecutable, "becomes executable")
	}
	if m, is := manifests[base(c.Path)]; is && c.Mode != 0 && m.changed(before, after) {
		mark(KindBuild, m.why)
	}
	if n := base(c.Path); n == "head" && pointer(after) || n == "config" &&
		bytes.Contains(bytes.ToLower(after), []byte("[core")) {
		mark(KindRepository, "git would treat a directory that contains it as a repository")
	}
	return all
}

// pointer reports whether a file named HEAD could be that of a repository.
func pointer(content []byte) bool {
	s := strings.TrimSpace(string(content))
	_, err := ParseOID(s)
	return err == nil || strings.HasPrefix(s, "ref:")
}

// leaves returns why a symbolic link cannot be followed safely, or "". It judges only the text of the link,
// independent of other files: dots are accepted at the beginning only, so that unmarked links stay within the tree
// whatever other links there are.
func leaves(p string, target []byte) string {
	t := string(target)
	switch {
	case target == nil:
		return "a symbolic link whose target was not read"
	case t == "" || strings.ContainsAny(t, "\x00\\"):
		return "a symbolic link whose target other systems interpret differently"
	case t[0] == '/':
		return "a symbolic link to an absolute path"
	}
	depth, down := strings.Count(p, "/"), false
	for part := range strings.SplitSeq(t, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			depth--
			if depth < 0 || down {
				return "a symbolic link that may leave the tree"
			}
		case isDotGit(part):
			return "a symbolic link into git's own directory"
		default:
			down = true
		}
	}
	return ""
}

// manifest is a file with some parts that are run, and others that change frequently.
type manifest struct {
	why     string
	changed func(before, after []byte) bool
}

var manifests = map[string]manifest{
	"package.json": {"its scripts or tools changed, which npm and others run",
		jsonChanged("scripts", "bin", "main", "type", "config", "gypfile", "workspaces", "packageManager", "engines", "husky",
			"lint-staged", "pre-commit", "simple-git-hooks", "overrides", "resolutions", "pnpm", "eslintConfig", "babel", "jest",
			"mocha", "imports")},
	"pyproject.toml": {"its sections for building and testing changed",
		tomlChanged("project", "project.optional-dependencies", "project.urls", "dependency-groups", "tool.black",
			"tool.isort", "tool.ruff", "tool.ruff.lint", "tool.mypy")},
	"cargo.toml": {"its sections for building changed",
		tomlChanged("dependencies", "dev-dependencies", "build-dependencies", "features", "workspace.dependencies")},
}

// jsonChanged compares the keys of an object. Invalid content counts as changed, and so does a duplicate key: readers
// differ in which one they use.
func jsonChanged(keys ...string) func(before, after []byte) bool {
	return func(before, after []byte) bool {
		was, now := jsonObject(before), jsonObject(after)
		if now == nil || was == nil && before != nil {
			return true
		}
		for _, k := range keys {
			if was[k] != now[k] {
				return true
			}
		}
		return false
	}
}

// jsonObject parses an object strictly: nil if it is invalid or has a duplicate key.
func jsonObject(b []byte) map[string]string {
	dec := json.NewDecoder(bytes.NewReader(b))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	m := map[string]string{}
	for dec.More() {
		key, err := dec.Token()
		name, is := key.(string)
		var v json.RawMessage
		if err != nil || !is || dec.Decode(&v) != nil {
			return nil
		}
		if _, twice := m[name]; twice {
			return nil
		}
		m[name] = string(v)
	}
	if _, err := dec.Token(); err != nil || dec.More() {
		return nil
	}
	return m
}

// tomlChanged compares all tables except those named, as text. A file with a multi-line string, in which a line could
// look like a table header, is compared as a whole.
func tomlChanged(harmless ...string) func(before, after []byte) bool {
	return func(before, after []byte) bool {
		if after == nil || tricky(before) || tricky(after) {
			return !bytes.Equal(before, after) || after == nil
		}
		return tomlRest(before, harmless) != tomlRest(after, harmless)
	}
}

func tricky(b []byte) bool {
	return bytes.Contains(b, []byte(`"""`)) || bytes.Contains(b, []byte(`'''`)) || bytes.ContainsRune(b, '\r')
}

// tomlRest returns the text of a file without its harmless tables, blanks and comments.
func tomlRest(b []byte, harmless []string) string {
	var rest strings.Builder
	skip := false
	for l := range strings.Lines(string(b)) {
		l = strings.TrimSpace(l)
		if name, is := strings.CutPrefix(l, "["); is && strings.HasSuffix(name, "]") {
			skip = slices.Contains(harmless, strings.TrimSuffix(name, "]"))
		} else if is {
			skip = false
		}
		if !skip && l != "" && l[0] != '#' {
			rest.WriteString(l + "\n")
		}
	}
	return rest.String()
}

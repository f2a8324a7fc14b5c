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

// maxLook is how much of a file is looked at, in bytes. Of a larger one it is taken that
// everything in it changed.
const maxLook = 1 << 20

// looks reports whether marks of a change depend on what the file holds.
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

// marks gives the marks of one change. Where looks says so, before and after are what the
// file held and holds, nil where it was or is not there or is larger than maxLook. It is
// pure. What is renamed comes as a deletion and an addition.
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

// pointer reports whether a file called HEAD could be a repository's.
func pointer(content []byte) bool {
	s := strings.TrimSpace(string(content))
	_, err := ParseOID(s)
	return err == nil || strings.HasPrefix(s, "ref:")
}

// leaves says why a link cannot be followed safely, or "". It is judged by its words
// alone, without what else the tree has: dots are climbed at the beginning only, so that
// each link which is not marked stays within the tree whatever others there are.
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

// manifest is a file of which some parts are run, and others change every day.
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

// jsonChanged compares the keys of an object. What cannot be read has changed, and so has
// a key that is there twice: readers differ in which one counts.
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

// jsonObject reads an object strictly: nil where it is none, or has a key twice.
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

// tomlChanged compares all tables but those named, as text. A file that has a string of
// several lines, within which a line could look like a table's name, is compared whole.
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

// tomlRest is the text of a file without its harmless tables, blanks and comments.
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

package repo

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// ObjectDirs returns the object directories that a sandbox must see: that of the repository, those that it borrows
// from (its alternates, transitively), and those of its initialised submodules. They are absolute host paths without
// symbolic links or duplicates, in a stable order.
func (r *Repo) ObjectDirs(ctx context.Context) ([]string, error) {
	all := borrowed(filepath.Join(r.Common, "objects"))
	seen := set(all)
	for _, m := range r.modules() {
		for _, dir := range borrowed(filepath.Join(m.dir, "objects")) {
			if !seen[dir] {
				seen[dir], all = true, append(all, dir)
			}
		}
	}
	return all, ctx.Err()
}

// maxBorrow is the depth of alternates that git follows.
const maxBorrow = 5

// borrowed returns a directory of objects and its alternates, as git finds them. Like git, it skips missing ones.
func borrowed(objects string) []string {
	var all []string
	seen := map[string]bool{}
	var add func(dir string, depth int)
	add = func(dir string, depth int) {
		dir, err := filepath.EvalSymlinks(dir)
		if err != nil || seen[dir] || depth > maxBorrow {
			return
		}
		seen[dir], all = true, append(all, dir)
		text, err := os.ReadFile(filepath.Join(dir, "info", "alternates"))
		if err != nil {
			return
		}
		for _, next := range parseAlternates(string(text)) {
			if !filepath.IsAbs(next) {
				next = filepath.Join(dir, next)
			}
			add(next, depth+1)
		}
	}
	add(objects, 0)
	return all
}

// parseAlternates parses a file of alternates: one path per line, possibly quoted.
func parseAlternates(text string) []string {
	var all []string
	for l := range strings.SplitSeq(text, "\n") {
		switch {
		case l == "" || l[0] == '#':
		case l[0] == '"':
			if p, ok := unquote(l); ok {
				all = append(all, p)
			}
		default:
			all = append(all, l)
		}
	}
	return all
}

// unquote reverses quote, also as git writes it: C escapes, of bytes. It ignores what follows the closing quote.
func unquote(s string) (string, bool) {
	if s == "" || s[0] != '"' {
		return "", false
	}
	letters := map[byte]byte{'a': 7, 'b': 8, 't': 9, 'n': 10, 'v': 11, 'f': 12, 'r': 13, '"': '"', '\\': '\\'}
	var out []byte
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return string(out), true
		case s[i] != '\\':
			out = append(out, s[i])
			continue
		case i+1 == len(s):
			return "", false
		}
		i++
		if b, ok := letters[s[i]]; ok {
			out = append(out, b)
			continue
		}
		n, err := strconv.ParseUint(s[i:min(i+3, len(s))], 8, 8)
		if err != nil || i+3 > len(s) {
			return "", false
		}
		out = append(out, byte(n))
		i += 2
	}
	return "", false
}

// alternate formats a path as a line of an alternates file, quoted if needed.
func alternate(p string) []byte {
	for i := range len(p) {
		if p[i] < ' ' || p[i] >= 0x7f {
			return quote(p)
		}
	}
	if p[0] == '"' || p[0] == '#' {
		return quote(p)
	}
	return []byte(p)
}

// module is the repository of an initialised submodule.
type module struct {
	name string // of its git directory, below that of the repository: modules/lib
	dir  string // on the host
}

const (
	maxModules = 1000 // maximum number of copied submodules
	maxNested  = 20   // maximum depth of nested directories
)

// modules returns the repositories of submodules, recursively. A linked work tree has its own, or uses those of the
// main one.
func (r *Repo) modules() []module {
	var all []module
	seen := map[string]bool{}
	var look func(dir, name string, depth int)
	look = func(dir, name string, depth int) {
		list, err := os.ReadDir(dir)
		if err != nil || depth > maxNested {
			return
		}
		for _, d := range list {
			at, sub := filepath.Join(dir, d.Name()), path.Join(name, d.Name())
			if !d.IsDir() || len(all) == maxModules {
				continue
			}
			if !isGitDir(at) {
				look(at, sub, depth+1)
				continue
			}
			if !seen[sub] {
				seen[sub], all = true, append(all, module{sub, at})
			}
			look(filepath.Join(at, "modules"), path.Join(sub, "modules"), depth+1)
		}
	}
	look(filepath.Join(r.Dir, "modules"), "modules", 0)
	if r.Linked {
		look(filepath.Join(r.Common, "modules"), "modules", 0)
	}
	return all
}

// isGitDir reports whether git would accept a directory as a repository.
func isGitDir(dir string) bool {
	_, err1 := os.Lstat(filepath.Join(dir, "HEAD"))
	_, err2 := os.Stat(filepath.Join(dir, "objects"))
	return err1 == nil && err2 == nil
}

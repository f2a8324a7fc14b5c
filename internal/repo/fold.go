package repo

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// fold maps names that some file system may treat as equal to the same name: HFS+ and APFS ignore invisible code
// points, NTFS ignores what follows a colon and trailing dots and spaces, and all of them ignore case. It folds
// more than each of them does, never less: fold(fold(x)) == fold(x).
func fold(name string) string {
	if utf8.ValidString(name) {
		name = strings.Map(foldRune, name)
	} else {
		name = strings.ToLower(name)
	}
	name, _, _ = strings.Cut(name, ":")
	return strings.TrimRight(name, ". ")
}

// foldRune returns the ASCII letter that r is a case variant of, r in lower case, or -1 for an invisible one.
func foldRune(r rune) rune {
	switch {
	case r < utf8.RuneSelf:
		return unicode.ToLower(r)
	case r == 'İ' || r == 'ı':
		return 'i'
	case unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point):
		return -1
	}
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		if f < utf8.RuneSelf {
			return unicode.ToLower(f)
		}
	}
	return unicode.ToLower(r)
}

// names splits a path into folded names. A backslash is a separator too, as on Windows.
func names(path string) []string {
	parts := strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == '\\' })
	for i, p := range parts {
		parts[i] = fold(p)
	}
	return parts
}

// isDotGit reports whether a name of a path is .git, or may be equal to it on some file system.
func isDotGit(name string) bool {
	for _, n := range names(name) {
		if same(n, ".git") {
			return true
		}
	}
	return false
}

// same reports whether a folded name is, or is an NTFS short name of, a name in lower case.
func same(folded, name string) bool { return folded == name || isShort(folded, name) }

// isShort reports whether a folded name may be the 8.3 short name of name on NTFS: git~1, claude~1.md, and gi7eba~1
// when there are many.
func isShort(folded, name string) bool {
	stem, rest, found := strings.Cut(folded, "~")
	if !found {
		return false
	}
	number, ext, _ := strings.Cut(rest, ".")
	if number == "" || strings.Trim(number, "0123456789") != "" || len(stem)+1+len(number) > 8 {
		return false
	}
	base, long := short(name)
	if ext != long {
		return false
	}
	if base = base[:min(len(base), 6)]; stem == base || len(base) == 6 && len(stem) >= 1 &&
		strings.HasPrefix(base, stem) && len(stem)+1+len(number) == 8 {
		return true
	}
	return len(stem) == 6 && len(base) >= 2 && stem[:2] == base[:2] && strings.Trim(stem[2:], "0123456789abcdef") == ""
}

// short returns the parts of an NTFS short name: what precedes the last dot, and three letters of what follows it,
// without other dots and spaces.
func short(name string) (base, ext string) {
	name = strings.TrimLeft(name, ".")
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		name, ext = name[:i], name[i+1:]
	}
	return strings.NewReplacer(".", "", " ", "").Replace(name), ext[:min(len(ext), 3)]
}

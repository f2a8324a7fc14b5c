package repo

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// The parsers read outputs of git with -z, in which names are not quoted. What git prints of hostile objects is
// hostile as well, so each parser accepts only what it expects.

// parseWorktrees parses `git worktree list --porcelain -z`.
func parseWorktrees(out string) map[Ref]string {
	trees := map[Ref]string{}
	at := ""
	for l := range strings.SplitSeq(out, "\x00") {
		if w, is := strings.CutPrefix(l, "worktree "); is {
			at = w
		}
		if b, is := strings.CutPrefix(l, "branch "); is {
			trees[Ref(b)] = at
		}
	}
	return trees
}

// Change is one path that differs between two commits.
type Change struct {
	Status  byte   // A added, D deleted, M modified, T type changed, R renamed, C copied
	Path    string // with slashes, relative to the top; any bytes except NUL
	OldPath string // previous path of a rename or copy, else ""
	OldMode Mode   // 0 if added
	Mode    Mode   // 0 if deleted
	OldID   OID
	ID      OID
	Score   int // similarity of a rename, in per cent

	Binary         bool // of DiffOptions.Stat
	Added, Deleted int  // lines, of DiffOptions.Stat
}

// Mode is the mode of a tree entry, as git stores it.
type Mode uint32

// The modes that git knows.
const (
	ModeFile       Mode = 0o100644
	ModeExecutable Mode = 0o100755
	ModeLink       Mode = 0o120000
	ModeSubmodule  Mode = 0o160000
	ModeTree       Mode = 0o040000
)

// String returns git's own form: six octal digits.
func (m Mode) String() string {
	s := strconv.FormatUint(uint64(m), 8)
	return strings.Repeat("0", max(0, 6-len(s))) + s
}

// parseMode parses the modes of git, and 0.
func parseMode(s string) (Mode, bool) {
	n, err := strconv.ParseUint(s, 8, 32)
	switch m := Mode(n); {
	case err != nil || len(s) != 6:
		return 0, false
	case m == 0, m == ModeFile, m == ModeExecutable, m == ModeLink, m == ModeSubmodule, m == ModeTree:
		return m, true
	}
	return 0, false
}

// rawReader parses `git diff-tree -r -z --raw [--numstat]`, record by record.
type rawReader struct {
	most    int
	changes []Change
	paths   int     // number of paths still missing from the current change
	reading *Change // nil between changes
	stats   int     // number of changes with line counts
	from    bool    // the next field is the old path of a rename
	to      bool    // the next field is the new path
}

// errRaw is the error for unexpected output of git.
var errRaw = fault.New(fault.Internal, "malformed diff in the output of git")

func (r *rawReader) record(s string) error {
	switch {
	case r.paths > 0:
		return r.path(s)
	case strings.HasPrefix(s, ":"):
		return r.header(s)
	case r.from:
		r.from, r.to = false, true
		return nil
	case r.to:
		r.to = false
		return nil
	}
	return r.numbers(s)
}

// header parses ":100644 100755 OID OID M".
func (r *rawReader) header(s string) error {
	f := strings.Split(s[1:], " ")
	if len(f) != 5 || f[4] == "" || r.stats > 0 {
		return errRaw
	}
	if len(r.changes) == r.most {
		return fault.New(fault.Invalid, "more than %d paths differ", r.most)
	}
	c := Change{Status: f[4][0]}
	var ok [2]bool
	c.OldMode, ok[0] = parseMode(f[0])
	c.Mode, ok[1] = parseMode(f[1])
	c.OldID, c.ID = idOrNone(f[2]), idOrNone(f[3])
	if !ok[0] || !ok[1] || !strings.ContainsRune("ADMTRC", rune(c.Status)) {
		return errRaw
	}
	c.Score, _ = strconv.Atoi(f[4][1:])
	r.changes = append(r.changes, c)
	r.reading, r.paths = &r.changes[len(r.changes)-1], 1
	if c.Status == 'R' || c.Status == 'C' {
		r.paths = 2
	}
	return nil
}

// idOrNone parses an object ID, the null ID as "".
func idOrNone(s string) OID {
	id, err := ParseOID(s)
	if err != nil {
		return ""
	}
	return id
}

func (r *rawReader) path(s string) error {
	if why := badPath(s); why != "" {
		return fault.New(fault.Invalid, "cannot apply path %q: %s", clip(s), why)
	}
	r.paths--
	if r.paths == 1 {
		r.reading.OldPath = s
	} else {
		r.reading.Path = s
	}
	return nil
}

// numbers parses "12\t3\tPATH", "-\t-\tPATH" of a binary file, or "12\t3\t" before the two paths of a rename. They
// come in the order of the changes.
func (r *rawReader) numbers(s string) error {
	f := strings.SplitN(s, "\t", 3)
	if len(f) != 3 || r.stats == len(r.changes) {
		return errRaw
	}
	c := &r.changes[r.stats]
	if f[2] != "" && f[2] != c.Path {
		return errRaw
	}
	r.stats++
	r.from = f[2] == ""
	if f[0] == "-" {
		c.Binary = true
		return nil
	}
	var errs [2]error
	c.Added, errs[0] = strconv.Atoi(f[0])
	c.Deleted, errs[1] = strconv.Atoi(f[1])
	if errs[0] != nil || errs[1] != nil {
		return errRaw
	}
	return nil
}

// end returns an error if a change is incomplete.
func (r *rawReader) end() error {
	if r.paths > 0 || r.from || r.to {
		return errRaw
	}
	return nil
}

// parseMerge parses `git merge-tree --write-tree -z --name-only --no-messages`: a tree, and the conflicting
// paths.
func parseMerge(out string) (tree OID, paths []string, err error) {
	first, rest, found := strings.Cut(out, "\x00")
	if tree, err = ParseOID(strings.TrimSpace(first)); err != nil || !found {
		return "", nil, fault.New(fault.Internal, "malformed merge in the output of git")
	}
	seen := map[string]bool{}
	for p := range strings.SplitSeq(rest, "\x00") {
		if p != "" && !seen[p] {
			seen[p], paths = true, append(paths, p)
		}
	}
	return tree, paths, nil
}

// parseStatus parses the paths of `git status --porcelain=v2 -z`.
func parseStatus(out string) (paths []string, err error) {
	records := strings.Split(out, "\x00")
	for i := 0; i < len(records); i++ {
		fields := map[byte]int{'1': 9, '2': 10, 'u': 11, '?': 2, '!': 2}
		l := records[i]
		if l == "" || l[0] == '#' {
			continue
		}
		n := fields[l[0]]
		f := strings.SplitN(l, " ", n)
		if n == 0 || len(f) != n {
			return nil, fault.New(fault.Internal, "malformed status in the output of git")
		}
		paths = append(paths, f[n-1])
		if l[0] == '2' {
			i++ // the old path of the rename
		}
	}
	return paths, nil
}

// parseObject parses one object of `git cat-file --batch`: "OID type size
// ", the content, and a newline.
func parseObject(out []byte) (id OID, content, rest []byte, ok bool) {
	head, rest, found := bytes.Cut(out, []byte("\n"))
	f := strings.Fields(string(head))
	if !found || len(f) != 3 {
		return "", nil, nil, false
	}
	n, err := strconv.Atoi(f[2])
	if id, err2 := ParseOID(f[0]); err == nil && err2 == nil && n >= 0 && n < len(rest) && rest[n] == '\n' {
		return id, rest[:n:n], rest[n+1:], true
	}
	return "", nil, nil, false
}

package wire

// RepoRequest asks for a sandbox that sees a git repository of the daemon's host, at the
// same path and at a frozen commit.
type RepoRequest struct {
	Dir string `json:"dir"`          // absolute, in its work tree; commands begin there
	At  string `json:"at,omitempty"` // the revision that the sandbox begins at; "" is HEAD
	// with what is not committed: changed files, and those that git does not track and does not ignore
	Dirty  bool   `json:"dirty,omitempty"`
	Branch string `json:"branch,omitempty"` // the branch that it begins on inside; "" is coppice/NAME
	// where there is no repository, or one that a sandbox cannot have, make one
	// without it, and warn
	Maybe bool `json:"maybe,omitempty"`
}

// Repo is the repository that a sandbox works on.
type Repo struct {
	Top    string `json:"top"`             // the top of its work tree, on the host and inside
	Dir    string `json:"dir"`             // where commands begin inside, when they do not say
	Branch string `json:"branch"`          // the branch that it began on: coppice/NAME
	Base   string `json:"base"`            // the frozen commit, by its full name
	Start  string `json:"start,omitempty"` // what it began with: a commit on Base, when that was not all
	From   string `json:"from,omitempty"`  // the branch of the host that Base was the tip of
}

// GitDiffRequest asks how the files of a sandbox that works on a repository differ from
// what it began with there: by its commits, and by what is not committed.
type GitDiffRequest struct {
	Paths []string `json:"paths,omitempty"` // only these, below the top, and what is below them; none is all
	Stat  bool     `json:"stat,omitempty"`  // count lines
	// the commit that was looked at, as a GitDiff gave it: that again, and not the
	// present; a conflict where another one was taken out since
	Work string `json:"work,omitempty"`
	// leave out files that the branch which is checked out in the repository has exactly as the sandbox has them
	Pending bool `json:"pending,omitempty"`
	// with pending: the commit to leave files out by, as a GitDiff gave it; "" is that of the branch now
	Onto string `json:"onto,omitempty"`
}

// GitDiff is how they differ. All that it names is in the repository by now.
type GitDiff struct {
	Repo  Repo   `json:"repo"`  // what the sandbox works on
	Start string `json:"start"` // the commit that it began with, and that is compared with
	Tip   string `json:"tip"`   // the commit that its HEAD is
	// a commit of all its files: tip, or one on it of what is not committed
	Work     string       `json:"work"`
	Snapshot string       `json:"snapshot"`          // of its history, that work is the files of
	Commits  int          `json:"commits"`           // how many tip has and the base does not
	Changes  []GitChange  `json:"changes"`           // by path
	Marks    []GitMark    `json:"marks"`             // what the host would later run or trust, of changes
	Skipped  []GitSkipped `json:"skipped,omitempty"` // what no commit can have, or is not meant to; the first thousand

	Applied int    `json:"applied,omitempty"` // with pending: how many files that changed were left out
	Onto    string `json:"onto,omitempty"`    // with pending: the commit that has them
	Branch  string `json:"branch,omitempty"`  // with pending: the branch that onto is the tip of; none if HEAD is detached
}

// GitChange is a file that differs.
type GitChange struct {
	Status  string `json:"status"`             // "A" added, "D" deleted, "M" modified, "T" of another type, "R" renamed
	Path    string `json:"path"`               // below the top; bytes that are not UTF-8 read as U+FFFD
	Raw     []byte `json:"raw,omitempty"`      // the exact bytes of the path, when they are not valid UTF-8
	Old     string `json:"old,omitempty"`      // with "R": what it was called
	OldRaw  []byte `json:"old_raw,omitempty"`  // the exact bytes of old, when they are not valid UTF-8
	Mode    string `json:"mode,omitempty"`     // as git writes it, such as 100644; none where it is gone
	OldMode string `json:"old_mode,omitempty"` // what it was; none where it was not there
	Binary  bool   `json:"binary,omitempty"`   // it is no text; told where lines are counted
	Added   int    `json:"added,omitempty"`    // lines, where they are counted
	Deleted int    `json:"deleted,omitempty"`  // lines, where they are counted
}

// SetName sets the path, whatever its bytes.
func (c *GitChange) SetName(path string) { c.Path, c.Raw = name(path) }

// SetOld sets what it was called.
func (c *GitChange) SetOld(path string) { c.Old, c.OldRaw = name(path) }

// Name gives the exact bytes of the path.
func (c GitChange) Name() string { return exact(c.Path, c.Raw) }

// OldName gives the exact bytes of what it was called.
func (c GitChange) OldName() string { return exact(c.Old, c.OldRaw) }

// GitMark says that the host would later run or trust a file that changed.
type GitMark struct {
	Path    string `json:"path"`              // below the top; bytes that are not UTF-8 read as U+FFFD
	Raw     []byte `json:"raw,omitempty"`     // the exact bytes of the path, when they are not valid UTF-8
	Kind    string `json:"kind"`              // such as "hook", "ci", "agent", "build", "link": docs/git.md has them all
	Why     string `json:"why"`               // what happens with it
	Trusted bool   `json:"trusted,omitempty"` // the request marked it as reviewed
}

// SetName sets the path, whatever its bytes.
func (m *GitMark) SetName(path string) { m.Path, m.Raw = name(path) }

// Name gives the exact bytes of the path.
func (m GitMark) Name() string { return exact(m.Path, m.Raw) }

// GitSkipped is a file that is not in a commit.
type GitSkipped struct {
	Path string `json:"path"`          // below the top; bytes that are not UTF-8 read as U+FFFD
	Raw  []byte `json:"raw,omitempty"` // the exact bytes of the path, when they are not valid UTF-8
	Why  string `json:"why"`           // why it is not
}

// SetName sets the path, whatever its bytes.
func (s *GitSkipped) SetName(path string) { s.Path, s.Raw = name(path) }

// Name gives the exact bytes of the path.
func (s GitSkipped) Name() string { return exact(s.Path, s.Raw) }

// The ways to apply.
const (
	GitSquash = "squash" // one commit with all that changed
	GitMerge  = "merge"  // a merge commit, with the sandbox's own behind it
	GitRebase = "rebase" // each commit anew
	GitPatch  = "patch"  // no commit: changes in index and work tree
)

// GitApplyRequest asks for what a sandbox changed to be put onto a branch of its
// repository.
type GitApplyRequest struct {
	Way string `json:"way,omitempty"` // "squash", which is the default, "merge", "rebase" or "patch"
	// with squash and patch: only these, below the top, and what is below them
	Paths    []string `json:"paths,omitempty"`
	PathsRaw [][]byte `json:"paths_raw,omitempty"` // more of them, whose bytes are not valid UTF-8
	Onto     string   `json:"onto,omitempty"`      // a branch, by its short name; "" is the one that is checked out
	Message  string   `json:"message,omitempty"`   // of squash and merge; "" is made of those of the sandbox's commits
	// of squash and merge, as NAME <ADDRESS>; "" is the user, as git knows them
	Author    string   `json:"author,omitempty"`
	CoAuthors []string `json:"co_authors,omitempty"` // more of them, in the same form, for lines Co-authored-by
	Trailers  []string `json:"trailers,omitempty"`   // more lines for the end of the message, as KEY: VALUE
	Trust     []string `json:"trust,omitempty"`      // paths with reviewed marks
	TrustRaw  [][]byte `json:"trust_raw,omitempty"`  // more of them, whose bytes are not valid UTF-8
	TrustAll  bool     `json:"trust_all,omitempty"`  // all of them were reviewed
	// the commit that was looked at, as a GitDiff or a dry run gave it: that is applied,
	// and not the present; a conflict where another one was taken out since
	Work   string `json:"work,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"` // report what would be done, and change nothing; marks need no trust
}

// GitApplied is what was applied, or would be.
type GitApplied struct {
	Way     string       `json:"way"`               // how
	Onto    string       `json:"onto,omitempty"`    // the branch; with "patch" none
	Old     string       `json:"old"`               // the commit that it was
	New     string       `json:"new"`               // the commit that it is, or would be; with "patch" the same
	Work    string       `json:"work"`              // the commit of the sandbox's files that was applied
	Commits int          `json:"commits"`           // how many of the sandbox's there are
	Message string       `json:"message,omitempty"` // of the commit, of squash and merge
	Changes []GitChange  `json:"changes"`           // against old, by path
	Marks   []GitMark    `json:"marks"`             // of changes
	Skipped []GitSkipped `json:"skipped,omitempty"` // as of GitDiff
	Saved   string       `json:"saved,omitempty"`   // directory of files that an interrupted apply left
	DryRun  bool         `json:"dry_run,omitempty"` // nothing was changed
}

package wire

// RepoRequest asks for a sandbox with a git repository of the daemon's host, at the same path and at a fixed commit.
type RepoRequest struct {
	Dir string `json:"dir"`          // absolute, in its work tree; working directory of commands
	At  string `json:"at,omitempty"` // the revision to start from; "" is HEAD
	// include uncommitted changes: changed files, and untracked files that are not ignored
	Dirty  bool   `json:"dirty,omitempty"`
	Branch string `json:"branch,omitempty"` // the branch to check out inside; "" is coppice/NAME
	// if there is no repository, or one that a sandbox cannot use, create the sandbox without it and return a warning
	Maybe bool `json:"maybe,omitempty"`
}

// Repo is the repository of a sandbox.
type Repo struct {
	Top    string `json:"top"`    // the top of its work tree, on the host and inside
	Dir    string `json:"dir"`    // default working directory of commands inside
	Branch string `json:"branch"` // the branch that was checked out at the start: coppice/NAME
	Base   string `json:"base"`   // the fixed commit, by its full name
	// the commit that it started from: one on Base, if uncommitted changes were included
	Start string `json:"start,omitempty"`
	From  string `json:"from,omitempty"` // the branch of the host whose tip Base was
}

// GitDiffRequest asks for the difference between the files of a sandbox and its start in the repository, including
// uncommitted changes.
type GitDiffRequest struct {
	Paths []string `json:"paths,omitempty"` // only these paths, relative to the top, and those below them; none is all
	Stat  bool     `json:"stat,omitempty"`  // count lines
	// the commit that was reviewed, from an earlier GitDiff: compare it instead of the live state; a conflict if
	// another one was exported since
	Work string `json:"work,omitempty"`
	// leave out files that the branch which is checked out in the repository has exactly as the sandbox has them
	Pending bool `json:"pending,omitempty"`
	// with pending: the commit to leave files out by, as a GitDiff gave it; "" is that of the branch now
	Onto string `json:"onto,omitempty"`
}

// GitDiff is the answer to a GitDiffRequest. All objects that it names are in the repository.
type GitDiff struct {
	Repo  Repo   `json:"repo"`  // repository of the sandbox
	Start string `json:"start"` // the commit that it started from, which is compared with
	Tip   string `json:"tip"`   // HEAD of the sandbox's repository
	// a commit of all its files: tip, or a commit on it with uncommitted changes
	Work     string      `json:"work"`
	Snapshot string      `json:"snapshot"` // the snapshot in the sandbox's history whose files work has
	Commits  int         `json:"commits"`  // number of commits that tip has and the base does not
	Changes  []GitChange `json:"changes"`  // by path
	Marks    []GitMark   `json:"marks"`    // changed files that the host would later run or trust
	// files that a commit cannot or should not hold; the first thousand
	Skipped []GitSkipped `json:"skipped,omitempty"`

	Applied int    `json:"applied,omitempty"` // with pending: number of changed files that were left out
	Onto    string `json:"onto,omitempty"`    // with pending: the commit that has them
	Branch  string `json:"branch,omitempty"`  // with pending: the branch whose tip is onto; none if HEAD is detached
}

// GitChange is a file that differs.
type GitChange struct {
	Status  string `json:"status"`             // "A" added, "D" deleted, "M" modified, "T" type changed, "R" renamed
	Path    string `json:"path"`               // relative to the top; bytes that are not UTF-8 read as U+FFFD
	Raw     []byte `json:"raw,omitempty"`      // the exact bytes of the path, when they are not valid UTF-8
	Old     string `json:"old,omitempty"`      // with "R": the previous path
	OldRaw  []byte `json:"old_raw,omitempty"`  // the exact bytes of old, when they are not valid UTF-8
	Mode    string `json:"mode,omitempty"`     // as git writes it, such as 100644; empty if deleted
	OldMode string `json:"old_mode,omitempty"` // the previous mode; empty if added
	Binary  bool   `json:"binary,omitempty"`   // the file is binary; set if lines were counted
	Added   int    `json:"added,omitempty"`    // added lines, if counted
	Deleted int    `json:"deleted,omitempty"`  // deleted lines, if counted
}

// SetName sets the path from its exact bytes.
func (c *GitChange) SetName(path string) { c.Path, c.Raw = name(path) }

// SetOld sets the previous path from its exact bytes.
func (c *GitChange) SetOld(path string) { c.Old, c.OldRaw = name(path) }

// Name returns the exact bytes of the path.
func (c GitChange) Name() string { return exact(c.Path, c.Raw) }

// OldName returns the exact bytes of the previous path.
func (c GitChange) OldName() string { return exact(c.Old, c.OldRaw) }

// GitMark marks a changed file that the host would later run or trust.
type GitMark struct {
	Path    string `json:"path"`              // relative to the top; bytes that are not UTF-8 read as U+FFFD
	Raw     []byte `json:"raw,omitempty"`     // the exact bytes of the path, when they are not valid UTF-8
	Kind    string `json:"kind"`              // such as "hook", "ci", "agent", "build", "link"; see docs/git.md
	Why     string `json:"why"`               // how the host uses the file
	Trusted bool   `json:"trusted,omitempty"` // the request marked it as reviewed
}

// SetName sets the path from its exact bytes.
func (m *GitMark) SetName(path string) { m.Path, m.Raw = name(path) }

// Name returns the exact bytes of the path.
func (m GitMark) Name() string { return exact(m.Path, m.Raw) }

// GitSkipped is a file that was left out of a commit.
type GitSkipped struct {
	Path string `json:"path"`          // relative to the top; bytes that are not UTF-8 read as U+FFFD
	Raw  []byte `json:"raw,omitempty"` // the exact bytes of the path, when they are not valid UTF-8
	Why  string `json:"why"`           // the reason
}

// SetName sets the path from its exact bytes.
func (s *GitSkipped) SetName(path string) { s.Path, s.Raw = name(path) }

// Name returns the exact bytes of the path.
func (s GitSkipped) Name() string { return exact(s.Path, s.Raw) }

// The values of GitApplyRequest.Way.
const (
	GitSquash = "squash" // one commit with all changes
	GitMerge  = "merge"  // a merge commit, with the sandbox's commits as second parent
	GitRebase = "rebase" // each commit again
	GitPatch  = "patch"  // no commit: changes in index and work tree
)

// GitApplyRequest asks to apply a sandbox's changes to a branch of its repository.
type GitApplyRequest struct {
	Way string `json:"way,omitempty"` // "squash" (the default), "merge", "rebase" or "patch"
	// with squash and patch: only these paths, relative to the top, and those below them
	Paths    []string `json:"paths,omitempty"`
	PathsRaw [][]byte `json:"paths_raw,omitempty"` // further paths that are not valid UTF-8
	Onto     string   `json:"onto,omitempty"`      // a branch, by its short name; "" is the current branch
	// message, with squash and merge; "" is made from those of the sandbox's commits
	Message string `json:"message,omitempty"`
	// author, with squash and merge, as NAME <ADDRESS>; "" is the user, as configured in git
	Author    string   `json:"author,omitempty"`
	CoAuthors []string `json:"co_authors,omitempty"` // further authors, in the same form, for Co-authored-by lines
	Trailers  []string `json:"trailers,omitempty"`   // further trailers of the message, as KEY: VALUE
	Trust     []string `json:"trust,omitempty"`      // paths whose marks were reviewed
	TrustRaw  [][]byte `json:"trust_raw,omitempty"`  // further paths that are not valid UTF-8
	TrustAll  bool     `json:"trust_all,omitempty"`  // all marks were reviewed
	// the commit that was reviewed, from a GitDiff or a dry run: apply it instead of the live state; a conflict if
	// another one was exported since
	Work   string `json:"work,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"` // report what would be done, and change nothing; marks need no review
}

// GitApplied is the answer to a GitApplyRequest.
type GitApplied struct {
	Way     string       `json:"way"`               // how the changes were applied
	Onto    string       `json:"onto,omitempty"`    // the branch; empty with "patch"
	Old     string       `json:"old"`               // the commit of the branch before
	New     string       `json:"new"`               // the commit of the branch after; the same with "patch"
	Work    string       `json:"work"`              // the commit of the sandbox's files that was applied
	Commits int          `json:"commits"`           // number of the sandbox's commits
	Message string       `json:"message,omitempty"` // message of the commit, with squash and merge
	Changes []GitChange  `json:"changes"`           // compared with old, by path
	Marks   []GitMark    `json:"marks"`             // marks of the changes
	Skipped []GitSkipped `json:"skipped,omitempty"` // see GitDiff
	Saved   string       `json:"saved,omitempty"`   // directory with files that an interrupted apply left
	DryRun  bool         `json:"dry_run,omitempty"` // nothing was changed
}

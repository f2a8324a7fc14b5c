package wire

// ProposeRequest asks for a proposal of a sandbox's changes: a branch of its repository with a report for a
// reviewer.
type ProposeRequest struct {
	Title     string   `json:"title,omitempty"`      // purpose, in one line
	Tests     []string `json:"tests,omitempty"`      // shell commands, each run in its own fork of the proposed state
	TimeoutMS int64    `json:"timeout_ms,omitempty"` // timeout of each test; 0 is the maximum, 24 hours
	Guard     bool     `json:"guard,omitempty"`      // refuse unreviewed marks, since the proposal will be pushed
	Trust     []string `json:"trust,omitempty"`      // paths whose marks were reviewed
	TrustRaw  [][]byte `json:"trust_raw,omitempty"`  // further paths that are not valid UTF-8
	TrustAll  bool     `json:"trust_all,omitempty"`  // all marks were reviewed
	// the commit that was reviewed, from a GitDiff; a conflict if the sandbox has changed since
	Work string `json:"work,omitempty"`
}

// Proposed is a proposal that was made.
type Proposed struct {
	Sandbox  string    `json:"sandbox"`         // name of the sandbox
	Title    string    `json:"title,omitempty"` // purpose, in one line
	Repo     Repo      `json:"repo"`            // repository of the sandbox
	Branch   string    `json:"branch"`          // short name of the branch
	Ref      string    `json:"ref"`             // the reference of the proposal
	Proposal string    `json:"proposal"`        // the commit of the reference
	Start    string    `json:"start"`           // the commit that the sandbox started from
	Tip      string    `json:"tip"`             // HEAD of the sandbox's repository
	Work     string    `json:"work"`            // the proposed commit: tip, or a commit on it with uncommitted changes
	Snapshot string    `json:"snapshot"`        // the snapshot in the sandbox's history whose files work has
	Commits  int       `json:"commits"`         // number of commits that work has and start does not
	Files    int       `json:"files"`           // number of changed files
	Added    int       `json:"added"`           // added lines
	Deleted  int       `json:"deleted"`         // deleted lines
	Marks    []GitMark `json:"marks"`           // changed files that the host would later run or trust
	Tests    []Trial   `json:"tests,omitempty"` // results of the requested tests
	Summary  string    `json:"summary"`         // beginning of the report, in Markdown
}

// TrialRequest asks to run a command in a temporary fork of a sandbox.
type TrialRequest struct {
	Cmd string `json:"cmd"` // a shell command
	// a reference to the snapshot to fork; "" is the live state
	At        string `json:"at,omitempty"`
	TimeoutMS int64  `json:"timeout_ms,omitempty"` // timeout; 0 is the maximum, 24 hours
}

// Trial is the result of a TrialRequest.
type Trial struct {
	Cmd      string `json:"cmd"`                 // the shell command
	Exit     int    `json:"exit"`                // exit code; 124 timeout, 125 if it could not be run
	TimeMS   int64  `json:"time_ms"`             // duration, including the start of the fork
	TimedOut bool   `json:"timed_out,omitempty"` // it timed out
	Tail     string `json:"tail,omitempty"`      // end of its output
}

// RebaseRequest asks to rebase a sandbox's changes in its repository onto another commit, with the sandbox's own git.
type RebaseRequest struct {
	Onto          string `json:"onto,omitempty"`           // a revision; "" is the tip of the branch that it started from
	KeepConflicts bool   `json:"keep_conflicts,omitempty"` // leave the rebase unfinished if there are conflicts
}

// Rebased is the answer to a RebaseRequest.
type Rebased struct {
	Repo      Repo     `json:"repo"`                // repository of the sandbox now
	Old       string   `json:"old"`                 // the previous base
	Before    string   `json:"before"`              // the snapshot before
	Head      string   `json:"head"`                // the snapshot after
	Moved     bool     `json:"moved"`               // the base has changed
	Conflicts []string `json:"conflicts,omitempty"` // files with conflicts to resolve in the sandbox, quoted by git
}

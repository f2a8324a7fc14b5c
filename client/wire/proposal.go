package wire

// ProposeRequest asks for a proposal of a sandbox's changes: a branch of its repository with a report for a
// reviewer.
type ProposeRequest struct {
	Title     string   `json:"title,omitempty"`      // what it is for, in a line
	Tests     []string `json:"tests,omitempty"`      // shell commands that are run, each in a fork of what is proposed
	TimeoutMS int64    `json:"timeout_ms,omitempty"` // for each of them; 0: none
	Guard     bool     `json:"guard,omitempty"`      // refuse unreviewed marks, since the proposal will be pushed
	Trust     []string `json:"trust,omitempty"`      // paths with reviewed marks
	TrustRaw  [][]byte `json:"trust_raw,omitempty"`  // more of them, whose bytes are not valid UTF-8
	TrustAll  bool     `json:"trust_all,omitempty"`  // all of them were reviewed
	// the commit that was looked at, as a GitDiff gave it; a conflict where the sandbox has
	// changed since
	Work string `json:"work,omitempty"`
}

// Proposed is what was proposed.
type Proposed struct {
	Sandbox  string    `json:"sandbox"`         // its name
	Title    string    `json:"title,omitempty"` // what it is for, in a line
	Repo     Repo      `json:"repo"`            // what it works on
	Branch   string    `json:"branch"`          // that was set, by its short name
	Ref      string    `json:"ref"`             // the reference of the proposal
	Proposal string    `json:"proposal"`        // the commit that it names
	Start    string    `json:"start"`           // the commit that the sandbox began with
	Tip      string    `json:"tip"`             // the commit that its HEAD is
	Work     string    `json:"work"`            // the commit that is proposed: tip, or one on it of what is not committed
	Snapshot string    `json:"snapshot"`        // of its history, that work is the files of
	Commits  int       `json:"commits"`         // how many work has and start does not
	Files    int       `json:"files"`           // that differ
	Added    int       `json:"added"`           // lines
	Deleted  int       `json:"deleted"`         // lines
	Marks    []GitMark `json:"marks"`           // what the host would later run or trust
	Tests    []Trial   `json:"tests,omitempty"` // results of the requested tests
	Summary  string    `json:"summary"`         // the beginning of the report, in Markdown
}

// TrialRequest asks for a command to be run in a temporary fork of a sandbox.
type TrialRequest struct {
	Cmd string `json:"cmd"` // a shell command
	// a reference to the snapshot that the fork begins at; "" is the present
	At        string `json:"at,omitempty"`
	TimeoutMS int64  `json:"timeout_ms,omitempty"` // 0: none
}

// Trial is the result of a TrialRequest.
type Trial struct {
	Cmd      string `json:"cmd"`                 // its shell command
	Exit     int    `json:"exit"`                // exit code; 124 timeout, 125 when it could not be run
	TimeMS   int64  `json:"time_ms"`             // how long it took, with the start of the fork
	TimedOut bool   `json:"timed_out,omitempty"` // it timed out
	Tail     string `json:"tail,omitempty"`      // the end of what it printed
}

// RebaseRequest asks for what a sandbox did in its repository to be put onto another commit
// of it, by its own git.
type RebaseRequest struct {
	Onto          string `json:"onto,omitempty"`           // a revision; "" is the tip of the branch that it came from
	KeepConflicts bool   `json:"keep_conflicts,omitempty"` // leave it in the middle where there are conflicts
}

// Rebased is what became of it.
type Rebased struct {
	Repo      Repo     `json:"repo"`                // what the sandbox works on now
	Old       string   `json:"old"`                 // the base that it had
	Before    string   `json:"before"`              // the snapshot before
	Head      string   `json:"head"`                // the snapshot after
	Moved     bool     `json:"moved"`               // the base is another one than before
	Conflicts []string `json:"conflicts,omitempty"` // files that are to be resolved in the sandbox, as git quotes them
}

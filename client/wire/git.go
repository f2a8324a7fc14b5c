package wire

// RepoRequest asks for a sandbox that sees a git repository of the daemon's host, at the
// same path and at a frozen commit.
type RepoRequest struct {
	Dir   string `json:"dir"`             // absolute, in its work tree; commands begin there
	At    string `json:"at,omitempty"`    // the revision that the sandbox begins at; "" is HEAD
	Dirty bool   `json:"dirty,omitempty"` // with what is not committed: changed files, and those that git does not track and does not ignore
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

package wire

import "time"

// The levels of a PolicyFile. Later ones win where they may.
const (
	PolicyUser    = "user"    // the owner's own file
	PolicyProject = "project" // a file that came with a project: it can tighten, and allow hosts that nobody denied
	PolicyFlags   = "flags"   // what the owner says this time
)

// PolicyFile is a file of a policy, as coppice.yaml has it.
type PolicyFile struct {
	Level string `json:"level"` // level: "user", "project", "flags"
	// an absolute path, for errors, and for what ./x is relative to; with "flags" also the name of a flag: "--allow"
	Name string `json:"name"`
	Text string `json:"text"` // YAML
}

// PolicyLine is one thing that a policy says.
type PolicyLine struct {
	Key   string `json:"key"`   // as in a file: "network.allow"
	Value string `json:"value"` // for people
	// where it was said: "built-in", a file and its line, a flag, "coppice net allow"; "" where
	// nobody said it
	From string `json:"from,omitempty"`
}

// TimedRule is a temporary network rule.
type TimedRule struct {
	Rule  string    `json:"rule"`           // as in a file
	Deny  bool      `json:"deny,omitempty"` // it denies
	Until time.Time `json:"until"`          // when it expires
}

// PolicyResult is the policy that a sandbox has now.
type PolicyResult struct {
	Digest string       `json:"digest"` // of the text
	Text   string       `json:"text"`   // canonical: one line of JSON, which is a file, too
	Lines  []PolicyLine `json:"lines"`  // the same, for people
	// digest of what it is when the timed rules have ended, where there are any
	Base  string      `json:"base,omitempty"`
	Timed []TimedRule `json:"timed,omitempty"` // rules of it that end, the first to end first
	Until *time.Time  `json:"until,omitempty"` // when the first of them ends: then the digest is another
}

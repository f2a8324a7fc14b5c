package wire

import "time"

// The levels of a PolicyFile. Later ones take precedence, within what a level may do.
const (
	PolicyUser    = "user"    // the user's own file
	PolicyProject = "project" // a file of a project: it can tighten the policy, and allow hosts that no level denied
	PolicyFlags   = "flags"   // options of one command
)

// PolicyFile is a policy file in the format of coppice.yaml.
type PolicyFile struct {
	Level string `json:"level"` // "user", "project" or "flags"
	// absolute path of the file, for errors and for relative paths in it; with "flags" also the name of a flag:
	// "--allow"
	Name string `json:"name"`
	Text string `json:"text"` // YAML
}

// PolicyLine is one setting of a policy.
type PolicyLine struct {
	Key   string `json:"key"`   // as in a file: "network.allow"
	Value string `json:"value"` // for people
	// where it was set: "built-in", a file and its line, a flag, "coppice net allow"; "" if it was not set
	From string `json:"from,omitempty"`
}

// TimedRule is a temporary network rule.
type TimedRule struct {
	Rule  string    `json:"rule"`           // the rule, as in a file
	Deny  bool      `json:"deny,omitempty"` // it is a deny rule
	Until time.Time `json:"until"`          // when it expires
}

// PolicyResult is the current policy of a sandbox.
type PolicyResult struct {
	Digest string       `json:"digest"` // digest of the text
	Text   string       `json:"text"`   // canonical form: one line of JSON, which is also a valid policy file
	Lines  []PolicyLine `json:"lines"`  // the same, for people
	// digest of the policy after all temporary rules have expired, if there are any
	Base  string      `json:"base,omitempty"`
	Timed []TimedRule `json:"timed,omitempty"` // temporary rules, the first to expire first
	Until *time.Time  `json:"until,omitempty"` // when the first of them expires and the digest changes
}

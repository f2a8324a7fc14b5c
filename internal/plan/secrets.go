package plan

import (
	"encoding/json"
	"slices"
	"time"
)

// Secrets are the grants of a sandbox and the way to their values. It holds no value.
type Secrets struct {
	// Socket is the path of the broker's socket for gates, and Ticket what the keeper says on it to become the end of the
	// line of this sandbox; see package secret/line. Both are empty if Grants is.
	Socket string  `json:"socket,omitempty"`
	Ticket []byte  `json:"ticket,omitempty"`
	Grants []Grant `json:"grants,omitempty"`
	// Later makes the sandbox trust the gate's authority from its start, so that grants can be given while it runs.
	Later bool `json:"later,omitempty"`
	// Env holds the placeholders, KEY=VALUE each, for commands that start from now on. Their own environment takes
	// precedence over it, and it over Config.Env.
	Env []string `json:"env,omitempty"`
	// Answers settle pending requests of the gate that would carry a secret. They hold for these requests alone.
	Answers []Answer `json:"answers,omitempty"`
}

// Answer is the owner's answer to a pending request.
type Answer struct {
	ID    string `json:"id"`
	Allow bool   `json:"allow,omitempty"`
}

// Needed reports whether the inside must trust the gate's authority.
func (s Secrets) Needed() bool { return s.Later || len(s.Grants) > 0 }

// Live reports whether a grant is not revoked, so that the gate needs a line to the broker.
func (s Secrets) Live() bool {
	return slices.ContainsFunc(s.Grants, func(g Grant) bool { return !g.Revoked })
}

// Grant is a grant for the gate.
type Grant struct {
	Name        string          `json:"name"`
	Item        json.RawMessage `json:"item"` // a grant.Item
	Kind        string          `json:"kind"` // of the placeholder's shape
	Placeholder string          `json:"placeholder,omitempty"`
	Aliases     []string        `json:"aliases,omitempty"`
	Revoked     bool            `json:"revoked,omitempty"`
	Given       time.Time       `json:"given"` // the time from which Item's For counts
	Used        int64           `json:"used,omitempty"`
	// Approved are the hosts to which the owner has approved requests, if the Item asks for the first.
	Approved []string `json:"approved,omitempty"`
}

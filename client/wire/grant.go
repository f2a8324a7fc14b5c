package wire

import "time"

// GrantSpec is a grant as a client gives it: PUT /v1/sandboxes/{id}/grants/{name}. See docs/secrets.md for the fields.
type GrantSpec struct {
	Secret   string      `json:"secret,omitempty"` // name of the secret; default: the name of the grant
	Preset   string      `json:"preset,omitempty"` // default of the other fields
	Kind     string      `json:"kind,omitempty"`
	Hosts    []string    `json:"hosts,omitempty"`
	Ports    []uint16    `json:"ports,omitempty"` // default: 443
	Methods  []string    `json:"methods,omitempty"`
	Paths    []string    `json:"paths,omitempty"`
	Sites    []GrantSite `json:"sites,omitempty"`
	Except   []string    `json:"except,omitempty"` // denied paths of the preset to allow
	Mode     string      `json:"mode,omitempty"`   // replace, require or add
	Env      []string    `json:"env,omitempty"`    // variables that hold the placeholder
	For      string      `json:"for,omitempty"`    // such as 8h
	Uses     int64       `json:"uses,omitempty"`   // 0 is unlimited
	Rate     string      `json:"rate,omitempty"`   // such as 10/s
	Fork     string      `json:"fork,omitempty"`   // none or reissue
	Insecure bool        `json:"insecure,omitempty"`
}

// GrantSite is a place in requests where a secret may stand.
type GrantSite struct {
	In       string   `json:"in"`
	Name     string   `json:"name,omitempty"`
	Part     string   `json:"part,omitempty"`
	Pointer  string   `json:"pointer,omitempty"`
	Methods  []string `json:"methods,omitempty"`
	Paths    []string `json:"paths,omitempty"`
	Services []string `json:"services,omitempty"`
	Regions  []string `json:"regions,omitempty"`
}

// States of a grant.
const (
	GrantLive      = "live"
	GrantRevoked   = "revoked"
	GrantExpired   = "expired"
	GrantExhausted = "exhausted" // it has no uses left
)

// Grant is a grant of a sandbox. It never holds the value of a secret.
type Grant struct {
	Name        string     `json:"name"`
	Secret      string     `json:"secret"`
	Preset      string     `json:"preset,omitempty"`
	Kind        string     `json:"kind,omitempty"`
	Hosts       []string   `json:"hosts"`
	Sites       []string   `json:"sites"`
	Methods     []string   `json:"methods,omitempty"`
	Paths       []string   `json:"paths,omitempty"`
	Mode        string     `json:"mode"`
	Env         []string   `json:"env,omitempty"`
	Placeholder string     `json:"placeholder,omitempty"` // "" in mode add
	Fork        string     `json:"fork"`
	State       string     `json:"state"`
	Why         string     `json:"why,omitempty"` // of a grant that is not live
	Given       time.Time  `json:"given"`
	Until       *time.Time `json:"until,omitempty"`
	Uses        int64      `json:"uses,omitempty"` // 0 is unlimited
	Used        int64      `json:"used"`
	LastUsed    *time.Time `json:"last_used,omitempty"`
}

// GrantsResult is the answer of GET /v1/sandboxes/{id}/grants.
type GrantsResult struct {
	Grants []Grant `json:"grants"`
}

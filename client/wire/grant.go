package wire

import "time"

// GrantSpec is a grant as a client gives it: PUT /v1/sandboxes/{id}/grants/{name}. See docs/secrets.md for the fields.
type GrantSpec struct {
	Secret string `json:"secret,omitempty"` // name of the secret; default: the name of the grant
	Preset string `json:"preset,omitempty"` // default of the other fields, such as "github"
	// kind of the secret, such as "github" or "jwt", which its placeholder has as well; default: that of its value
	Kind    string   `json:"kind,omitempty"`
	Hosts   []string `json:"hosts,omitempty"`   // hosts that requests may carry the secret to
	Ports   []uint16 `json:"ports,omitempty"`   // ports of these hosts; default: 443
	Methods []string `json:"methods,omitempty"` // methods of such requests; default: all
	// paths of such requests, as in rules; default: all that the preset does not deny
	Paths []string `json:"paths,omitempty"`
	// the query keys that such requests may have, with their values; "*" is any value
	Query map[string]string `json:"query,omitempty"`
	// where in a request the secret stands; default: those of the preset
	Sites  []GrantSite `json:"sites,omitempty"`
	Except []string    `json:"except,omitempty"` // denied paths of the preset to allow
	// "replace" or "" (the placeholder is replaced), "require" (requests without it are refused) or "add" (the secret is
	// added without a placeholder)
	Mode string   `json:"mode,omitempty"`
	Env  []string `json:"env,omitempty"`  // variables that hold the placeholder; default: those of the preset
	For  string   `json:"for,omitempty"`  // duration, such as 8h; default: no end
	Uses int64    `json:"uses,omitempty"` // number of requests that may carry the secret; 0 is unlimited
	Rate string   `json:"rate,omitempty"` // the same for a time, such as 10/s
	// which requests with the secret wait for approval: "never" or "", "first" (the first to each host), or "each"
	Ask string `json:"ask,omitempty"`
	// whether forks get the grant: "none" or "", or "reissue" (with another placeholder)
	Fork     string `json:"fork,omitempty"`
	Insecure bool   `json:"insecure,omitempty"` // also over connections without TLS; requires ports
	// keys of the SSH server, one of which it must have: "ssh-ed25519 AAAA..." as in known_hosts, or "SHA256:..."
	HostKeys []string `json:"host_keys,omitempty"`
}

// GrantSite is a place in requests where a secret may stand.
type GrantSite struct {
	// "header", "bearer", "basic", "git", "query", "cookie", "path", "json", "form", "sigv4" or "ssh"; more may be added
	In       string   `json:"in"`
	Name     string   `json:"name,omitempty"`     // of the header, query field, cookie or field of a form; of the user of SSH
	Part     string   `json:"part,omitempty"`     // word before the secret in a header; with "basic", "user" or "password"
	Pointer  string   `json:"pointer,omitempty"`  // JSON pointer, for a site in a body
	Methods  []string `json:"methods,omitempty"`  // only in requests with these methods
	Paths    []string `json:"paths,omitempty"`    // only in requests with these paths
	Services []string `json:"services,omitempty"` // of AWS, for a signature
	Regions  []string `json:"regions,omitempty"`  // of AWS, for a signature
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
	Name        string     `json:"name"`                  // unique in the sandbox
	Secret      string     `json:"secret"`                // name of the secret
	Preset      string     `json:"preset,omitempty"`      // as in GrantSpec
	Kind        string     `json:"kind,omitempty"`        // kind of the placeholder
	Hosts       []string   `json:"hosts"`                 // hosts that requests may carry the secret to
	Sites       []string   `json:"sites"`                 // where in a request it stands, such as "header:X-Api-Key"
	Methods     []string   `json:"methods,omitempty"`     // methods of such requests; none is all
	Paths       []string   `json:"paths,omitempty"`       // paths of such requests; none is all
	Mode        string     `json:"mode"`                  // "replace", "require" or "add"
	Ask         string     `json:"ask,omitempty"`         // as in GrantSpec; none is "never"
	Env         []string   `json:"env,omitempty"`         // variables that hold the placeholder
	HostKeys    []string   `json:"host_keys,omitempty"`   // of the SSH server
	Placeholder string     `json:"placeholder,omitempty"` // stands for the secret in the sandbox; none with mode "add"
	Fork        string     `json:"fork"`                  // whether forks get the grant: "none" or "reissue"
	State       string     `json:"state"`                 // "live", "revoked", "expired", "exhausted"
	Why         string     `json:"why,omitempty"`         // reason, for a grant that is not live
	Given       time.Time  `json:"given"`                 // when it was given
	Until       *time.Time `json:"until,omitempty"`       // when it expires; none is never
	Uses        int64      `json:"uses,omitempty"`        // number of requests that may carry it; 0 is unlimited
	Used        int64      `json:"used"`                  // number of requests that carried it
	LastUsed    *time.Time `json:"last_used,omitempty"`   // when the last of them was sent
	Refused     *time.Time `json:"refused,omitempty"`     // when a request was last refused because of it
	RefusedWhy  string     `json:"refused_why,omitempty"` // and why
}

// GrantsResult is the answer of GET /v1/sandboxes/{id}/grants.
type GrantsResult struct {
	Grants []Grant `json:"grants"` // by name
}

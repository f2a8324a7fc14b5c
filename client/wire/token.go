package wire

import "time"

// Token describes a bearer token, without its secret.
type Token struct {
	ID        string     `json:"id"`                  // identifies it, for example to revoke it
	Name      string     `json:"name"`                // purpose of the token
	Scope     string     `json:"scope"`               // "read", "operate" or "admin": each includes the previous ones
	Sandboxes []string   `json:"sandboxes,omitempty"` // IDs of its sandboxes; none is all
	Created   time.Time  `json:"created"`             // time of creation
	Expires   *time.Time `json:"expires,omitempty"`   // when it expires
	LastUsed  *time.Time `json:"last_used,omitempty"` // time of its last use, to the minute
}

// TokenRequest asks for a new token.
type TokenRequest struct {
	Name string `json:"name"` // purpose of the token
	// "read", "operate" or "admin": each includes the previous ones; "" is "operate"
	Scope     string   `json:"scope,omitempty"`
	Sandboxes []string `json:"sandboxes,omitempty"` // names or IDs of its sandboxes; none is all
	TTLMS     int64    `json:"ttl_ms,omitempty"`    // lifetime; 0 does not expire
}

// TokenResult is a new token. The secret is only returned here.
type TokenResult struct {
	Token
	Secret string `json:"secret"` // the bearer token, returned only once
}

// TokensResult lists all tokens.
type TokensResult struct {
	Tokens []Token `json:"tokens"` // oldest first
}

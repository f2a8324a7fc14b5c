package wire

import "time"

// Token describes a bearer token, without its secret.
type Token struct {
	ID        string     `json:"id"`                  // for revoking it
	Name      string     `json:"name"`                // what it is for
	Scope     string     `json:"scope"`               // "read", "operate" or "admin": each includes those before it
	Sandboxes []string   `json:"sandboxes,omitempty"` // ids of its sandboxes; none is all
	Created   time.Time  `json:"created"`             // when
	Expires   *time.Time `json:"expires,omitempty"`   // when it expires
	LastUsed  *time.Time `json:"last_used,omitempty"` // when, to the minute
}

// TokenRequest asks for a new token.
type TokenRequest struct {
	Name string `json:"name"` // what it is for
	// "read", "operate" or "admin": each includes those before it; "" is "operate"
	Scope     string   `json:"scope,omitempty"`
	Sandboxes []string `json:"sandboxes,omitempty"` // names or ids of its sandboxes; none is all
	TTLMS     int64    `json:"ttl_ms,omitempty"`    // lifetime; 0 does not expire
}

// TokenResult is a new token. The secret is only returned here.
type TokenResult struct {
	Token
	Secret string `json:"secret"` // the bearer token, returned only once
}

// TokensResult is all tokens.
type TokensResult struct {
	Tokens []Token `json:"tokens"` // oldest first
}

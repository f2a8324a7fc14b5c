package wire

import "time"

// Token is what is known of a bearer token. Its secret is not.
type Token struct {
	ID        string     `json:"id"`                  // to revoke it by
	Name      string     `json:"name"`                // what it is for
	Scope     string     `json:"scope"`               // "read", "operate" or "admin": each includes those before it
	Sandboxes []string   `json:"sandboxes,omitempty"` // ids of those that it is for; none is all
	Created   time.Time  `json:"created"`             // when
	Expires   *time.Time `json:"expires,omitempty"`   // when it ends by itself
	LastUsed  *time.Time `json:"last_used,omitempty"` // when, to the minute
}

// TokenRequest asks for a new token.
type TokenRequest struct {
	Name string `json:"name"` // what it is for
	// "read", "operate" or "admin": each includes those before it; "" is "operate"
	Scope     string   `json:"scope,omitempty"`
	Sandboxes []string `json:"sandboxes,omitempty"` // names or ids of those that it is for; none is all
	TTLMS     int64    `json:"ttl_ms,omitempty"`    // so long from now it ends by itself; 0 is never
}

// TokenResult is a new token. Its secret is told this once.
type TokenResult struct {
	Token
	Secret string `json:"secret"` // the bearer token itself, told this once
}

// TokensResult is all tokens.
type TokensResult struct {
	Tokens []Token `json:"tokens"` // oldest first
}

package daemon

import "github.com/coppice-dev/coppice/internal/auth"

// NewToken generates the secret of a token for HTTP.TokenFile. Nothing is stored.
func NewToken() string {
	secret, _ := auth.NewSecret()
	return secret
}

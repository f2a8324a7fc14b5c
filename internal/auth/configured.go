package auth

import (
	"context"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// ConfiguredName is the name of a configured token in lists.
const ConfiguredName = "token file"

// Configured is a Store that adds one token of scope admin to those of another Store: the one of the daemon's
// configuration. That token is never stored, so it is valid only while it is configured. All methods are safe for
// concurrent use, but only one goroutine may call Set.
type Configured struct {
	Store // has all other tokens

	mu  sync.Mutex
	tok Token // with ID "": none; guarded by mu
}

// Set makes secret the configured token; "" removes the token. It returns the ID of the token that it replaced or
// removed, whose requests in progress the caller must end, or "". If secret is malformed (Invalid), or if a stored
// token has its ID (Exists), no token is configured any more. Errors quote nothing of secret.
func (c *Configured) Set(ctx context.Context, secret string, now time.Time) (ended string, err error) {
	before := c.current()
	if secret != "" && before.Hash == HashOf(secret) {
		return "", nil
	}
	next, err := c.check(ctx, secret, now)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tok = next
	return before.ID, err
}

// check returns the token of a secret; a zero one for "" and with errors.
func (c *Configured) check(ctx context.Context, secret string, now time.Time) (Token, error) {
	if secret == "" {
		return Token{}, nil
	}
	id, err := ParseSecret(secret)
	if err != nil {
		return Token{}, err
	}
	switch _, err := c.Store.Token(ctx, id); {
	case err == nil: // its record may have fewer rights, and can be revoked
		return Token{}, fault.New(fault.Exists, "token %s is already stored", id).
			WithHint("generate one for the configuration: coppice token generate")
	case !fault.Is(err, fault.NotFound):
		return Token{}, err
	}
	return Token{ID: id, Name: ConfiguredName, Scope: Admin, Created: now.UTC(), Hash: HashOf(secret)}, nil
}

// current returns the configured token; with ID "", there is none.
func (c *Configured) current() Token {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tok
}

// AddToken implements Store.
func (c *Configured) AddToken(ctx context.Context, t Token) error {
	if t.ID != "" && t.ID == c.current().ID {
		return fault.New(fault.Exists, "token %s exists", t.ID).WithHint("list them: coppice token ls")
	}
	return c.Store.AddToken(ctx, t)
}

// Token implements Store.
func (c *Configured) Token(ctx context.Context, id string) (Token, error) {
	if t := c.current(); id != "" && t.ID == id {
		return t, nil
	}
	return c.Store.Token(ctx, id)
}

// Tokens implements Store. The configured token is the last one.
func (c *Configured) Tokens(ctx context.Context) ([]Token, error) {
	all, err := c.Store.Tokens(ctx)
	if t := c.current(); err == nil && t.ID != "" {
		all = append(all, t)
	}
	return all, err
}

// RemoveToken implements Store. Denied: it is the configured token.
func (c *Configured) RemoveToken(ctx context.Context, id string) error {
	if id != "" && id == c.current().ID {
		return fault.New(fault.Denied, "token %s is that of the daemon's token file", id).
			WithHint("replace the content of the file; its new token is valid within seconds: coppice token generate")
	}
	return c.Store.RemoveToken(ctx, id)
}

// TokenUsed implements Store. The last use of a configured token is known until it is replaced or the daemon exits.
func (c *Configured) TokenUsed(ctx context.Context, id string, at time.Time) error {
	if c.used(id, at) {
		return nil
	}
	return c.Store.TokenUsed(ctx, id, at)
}

// used notes the last use of the configured token, if it has that ID.
func (c *Configured) used(id string, at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id == "" || id != c.tok.ID {
		return false
	}
	c.tok.Used = at
	return true
}

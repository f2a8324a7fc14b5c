package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/visible"
)

// A secret is "cpc_", the token's ID (8 digits), "_", and 32 random bytes in base64url (43 characters). The ID is not
// secret: it finds the record.
const (
	secretPrefix = "cpc_"
	idDigits     = 8
	randomBytes  = 32
	secretLen    = len(secretPrefix) + idDigits + 1 + 43
)

// maxTokenName is the maximum length of a token's name, in bytes.
const maxTokenName = 64

// Hash is the SHA-256 of a secret. A secret has 256 random bits, so that no slow hash is needed.
type Hash [sha256.Size]byte

// HashOf hashes a secret.
func HashOf(secret string) Hash { return sha256.Sum256([]byte(secret)) }

// Token is the stored record of a token.
type Token struct {
	ID        string
	Name      string // description for users
	Scope     Scope
	Sandboxes []string // IDs; nil means all
	Created   time.Time
	Expires   time.Time // zero: never
	Used      time.Time // last use, to the minute; zero: never
	Hash      Hash      // of the secret
}

// Store stores tokens. Its methods are safe for concurrent use.
type Store interface {
	// AddToken stores a new token. Exists: a token has that ID.
	AddToken(ctx context.Context, t Token) error
	// Token returns a token. NotFound: the ID is unknown.
	Token(ctx context.Context, id string) (Token, error)
	// Tokens returns all tokens, oldest first.
	Tokens(ctx context.Context) ([]Token, error)
	// RemoveToken deletes a token. NotFound: the ID is unknown.
	RemoveToken(ctx context.Context, id string) error
	// TokenUsed sets Used.
	TokenUsed(ctx context.Context, id string, at time.Time) error
	// WidenToken adds sandboxes to a limited token, and does nothing for others.
	WidenToken(ctx context.Context, id string, sandboxes []string) error
}

// Tokens creates, checks and revokes tokens.
type Tokens struct {
	Store Store
	// Find returns the ID of a sandbox by name or ID.
	Find func(ctx context.Context, name string) (string, error)
	// Revoked are called, in order, when a token is revoked or has expired. Set them before serving.
	Revoked []func(id string)
	Now     func() time.Time // nil is time.Now
}

func (t *Tokens) now() time.Time {
	if t.Now != nil {
		return t.Now()
	}
	return time.Now()
}

// NewSecret generates a secret, and returns it with the ID in it. crypto/rand never fails.
func NewSecret() (secret, id string) {
	var b [idDigits/2 + randomBytes]byte
	_, _ = rand.Read(b[:])
	id = hex.EncodeToString(b[:idDigits/2])
	return secretPrefix + id + "_" + base64.RawURLEncoding.EncodeToString(b[idDigits/2:]), id
}

// ParseSecret checks the form of a secret, which has exactly one spelling, and returns its ID. The error is Invalid
// and quotes nothing of s.
func ParseSecret(s string) (id string, err error) {
	bad := fault.New(fault.Invalid, "malformed token").
		WithHint("a token has %d characters and begins with %s", secretLen, secretPrefix)
	if len(s) != secretLen || !strings.HasPrefix(s, secretPrefix) || s[len(secretPrefix)+idDigits] != '_' {
		return "", bad
	}
	id = s[len(secretPrefix) : len(secretPrefix)+idDigits]
	if !IsTokenID(id) {
		return "", bad
	}
	// The decoder ignores newlines, which no secret contains.
	random := s[len(secretPrefix)+idDigits+1:]
	if strings.ContainsAny(random, "\r\n") {
		return "", bad
	}
	if b, err := base64.RawURLEncoding.Strict().DecodeString(random); err != nil || len(b) != randomBytes {
		return "", bad
	}
	return id, nil
}

// IsTokenID reports whether s has the form of a token ID.
func IsTokenID(s string) bool { return len(s) == idDigits && strings.Trim(s, "0123456789abcdef") == "" }

// Create creates a token. Its secret is in the result, and is not stored.
func (t *Tokens) Create(ctx context.Context, req wire.TokenRequest) (wire.TokenResult, error) {
	tok, err := t.validate(ctx, req)
	if err != nil {
		return wire.TokenResult{}, err
	}
	for try := 0; ; try++ {
		var secret string
		secret, tok.ID = NewSecret()
		tok.Hash = HashOf(secret)
		err := t.Store.AddToken(ctx, tok)
		if err == nil {
			return wire.TokenResult{Token: tok.wire(), Secret: secret}, nil
		}
		if !fault.Is(err, fault.Exists) || try == 9 { // ids are short
			return wire.TokenResult{}, fault.Wrap(err, "store the token")
		}
	}
}

// validate checks a request.
func (t *Tokens) validate(ctx context.Context, req wire.TokenRequest) (tok Token, err error) {
	switch {
	case req.Name == "":
		return tok, fault.New(fault.Invalid, "a token requires a name").WithHint("send its purpose as \"name\"")
	case len(req.Name) > maxTokenName:
		return tok, fault.New(fault.Invalid, "the token's name is too long: %d bytes; the limit is "+
			"%d", len(req.Name), maxTokenName).
			WithHint("choose a shorter one")
	case strings.ContainsFunc(req.Name, func(r rune) bool { return !visible.Rune(r) }):
		return tok, fault.New(fault.Invalid, "invalid token name %q: it contains unprintable characters", req.Name).
			WithHint("use letters, digits and spaces")
	case !limit.InLife(req.TTLMS):
		return tok, fault.New(fault.Invalid, "invalid token lifetime %d ms: out of range", req.TTLMS).
			WithHint("use a time of up to 100 years, or omit it for a token that does not expire")
	}
	scope := Operate
	if req.Scope != "" {
		if scope, err = ParseScope(req.Scope); err != nil {
			return tok, err
		}
	}
	if scope == Admin && len(req.Sandboxes) > 0 {
		return tok, fault.New(fault.Invalid,
			"a token for some sandboxes cannot have the scope admin").
			WithHint("use the scope operate")
	}
	now := t.now().UTC()
	tok = Token{Name: req.Name, Scope: scope, Created: now}
	if req.TTLMS > 0 {
		tok.Expires = now.Add(time.Duration(req.TTLMS) * time.Millisecond)
	}
	for _, name := range req.Sandboxes {
		id, err := t.Find(ctx, name)
		if err != nil {
			return tok, err
		}
		tok.Sandboxes = append(tok.Sandboxes, id)
	}
	return tok, nil
}

// List returns all tokens, including expired ones, oldest first.
func (t *Tokens) List(ctx context.Context) ([]wire.Token, error) {
	all, err := t.Store.Tokens(ctx)
	list := make([]wire.Token, 0, len(all))
	for _, tok := range all {
		list = append(list, tok.wire())
	}
	return list, err
}

// Revoke deletes a token, and ends requests in progress with it.
func (t *Tokens) Revoke(ctx context.Context, id string) error {
	if !IsTokenID(id) {
		return fault.New(fault.Invalid, "unknown token ID %q", id).WithHint("list them: coppice token ls")
	}
	if err := t.Store.RemoveToken(ctx, id); err != nil {
		return err
	}
	t.Ended(id)
	return nil
}

// Ended ends the requests in progress of a revoked or replaced token.
func (t *Tokens) Ended(id string) {
	for _, end := range t.Revoked {
		end(id)
	}
}

// Widen adds sandboxes to a limited token, such as the forks that it created.
func (t *Tokens) Widen(ctx context.Context, id string, sandboxes []string) error {
	return t.Store.WidenToken(ctx, id, sandboxes)
}

// errWrong returns the answer to every invalid secret, whatever is wrong with it.
func errWrong() error {
	return fault.New(fault.Denied, "the token is invalid or was revoked").
		WithHint("create another: coppice token create NAME")
}

// Verify returns the token of a secret. The errors are Denied, also for an expired token, and those of the store.
func (t *Tokens) Verify(ctx context.Context, secret string) (Token, error) {
	id, err := ParseSecret(secret)
	if err != nil {
		return Token{}, errWrong()
	}
	sum := HashOf(secret)
	tok, err := t.Store.Token(ctx, id)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return Token{}, fault.Wrap(err, "read the token")
	}
	// Compare for an unknown ID too, with the zero hash, to take the same time.
	same := subtle.ConstantTimeCompare(sum[:], tok.Hash[:]) == 1
	if err != nil || !same {
		return Token{}, errWrong()
	}
	if err := t.lives(tok); err != nil {
		return Token{}, err
	}
	return tok, nil
}

// Good returns the current record of a token whose secret was verified before: it may have been revoked, expired or
// widened since. The errors are those of Verify.
func (t *Tokens) Good(ctx context.Context, id string) (Token, error) {
	tok, err := t.Store.Token(ctx, id)
	switch {
	case fault.Is(err, fault.NotFound):
		return Token{}, errWrong()
	case err != nil:
		return Token{}, fault.Wrap(err, "read the token")
	}
	if err := t.lives(tok); err != nil {
		return Token{}, err
	}
	return tok, nil
}

func (t *Tokens) lives(tok Token) error {
	if tok.expired(t.now()) {
		return fault.New(fault.Denied, "the token has expired").WithHint("create another: coppice token create NAME")
	}
	return nil
}

// note records the last use of a token, to the minute: one write per request would be too many.
func (t *Tokens) note(ctx context.Context, tok Token) error {
	minute := t.now().UTC().Truncate(time.Minute)
	if !minute.After(tok.Used) {
		return nil
	}
	return t.Store.TokenUsed(ctx, tok.ID, minute)
}

func (t Token) expired(now time.Time) bool { return !t.Expires.IsZero() && !now.Before(t.Expires) }

// Principal returns the principal of the token.
func (t Token) Principal() Principal {
	return Principal{TokenID: t.ID, Scope: t.Scope, Sandboxes: t.Sandboxes}
}

func (t Token) wire() wire.Token {
	w := wire.Token{ID: t.ID, Name: t.Name, Scope: t.Scope.String(), Sandboxes: t.Sandboxes, Created: t.Created}
	if !t.Expires.IsZero() {
		w.Expires = &t.Expires
	}
	if !t.Used.IsZero() {
		w.LastUsed = &t.Used
	}
	return w
}

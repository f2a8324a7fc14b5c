package store

import (
	"context"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// token is what a login gave. The zero token is none.
type token struct {
	text string
	span span          // zero: it does not end
	full time.Duration // the time it was given by the login
	// renewable says that the server extends it. One that has reached its maximum is replaced by a new login.
	renewable bool
}

// session holds the token. One caller at a time logs in or renews, and others wait for it, unless their contexts end.
type session struct {
	turn chan struct{} // has one element while no caller logs in

	mu  sync.Mutex
	now token // guarded by mu
}

func newSession() *session {
	s := &session{turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

func (s *session) get() token {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *session) set(t token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = t
}

func (s *session) forget() { s.set(token{}) }

// drop forgets the token t, unless another one has replaced it.
func (s *session) drop(t token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now.text == t.text {
		s.now = token{}
	}
}

// call sends a request with a token, which it returns as well. If the token has been revoked, it logs in once more.
// Vault answers alike for a token that it does not know and for one that may not read: only the former is replaced,
// since leases end with their token.
func (v *Vault) call(ctx context.Context, method, path string, body map[string]any) (answer, token, error) {
	for again := false; ; again = true {
		t, fresh, err := v.token(ctx)
		if err != nil {
			return answer{}, token{}, err
		}
		a, err := v.client.do(ctx, method, path, t.text, body)
		if err == nil || again || fresh || !fault.Is(err, fault.Denied) {
			return a, t, err
		}
		if _, lerr := v.client.do(ctx, "GET", "auth/token/lookup-self", t.text, nil); !fault.Is(lerr, fault.Denied) {
			return a, t, err
		}
		v.session.drop(t)
	}
}

// token returns a token that has not reached two thirds of its time, and whether it is from a login just now.
func (v *Vault) token(ctx context.Context) (t token, fresh bool, err error) {
	if t := v.session.get(); v.good(t) {
		return t, false, nil
	}
	select {
	case <-v.session.turn:
		defer func() { v.session.turn <- struct{}{} }()
	case <-ctx.Done():
		return token{}, false, fault.Wrap(context.Cause(ctx), "log in to Vault")
	}
	t = v.session.get() // another caller may have been first
	if v.good(t) {
		return t, false, nil
	}
	if t.text != "" && t.renewable && v.now().Before(t.span.until) {
		// Near its maximum, a token is renewed for what is left. A new login then gives more.
		if next, err := v.renewed(ctx, t); err == nil && next.full >= t.full/2 {
			next.full = t.full
			v.session.set(next)
			return next, false, nil
		}
	}
	t, err = v.login(ctx)
	if err == nil {
		v.session.set(t)
	}
	return t, true, err
}

// good reports whether a token need not be renewed yet.
func (v *Vault) good(t token) bool {
	return t.text != "" && (t.span.until.IsZero() || v.now().Before(t.span.again))
}

// login returns a new token. For the method token, it is the credential, and the server is asked how long it lasts.
func (v *Vault) login(ctx context.Context) (token, error) {
	credential, err := v.auth.Credential(ctx)
	if err != nil {
		return token{}, fault.Wrap(err, "log in to Vault")
	}
	defer credential.Close()
	secret := string(credential.Bytes())
	var a answer
	switch v.auth.Method {
	case VaultToken:
		a, err = v.client.do(ctx, "GET", "auth/token/lookup-self", secret, nil)
		if err == nil {
			a.Auth, err = lookedUp(a.Data)
			a.Auth.Token = secret
		}
	case VaultAppRole:
		a, err = v.client.do(ctx, "PUT", "auth/"+v.auth.Mount+"/login", "",
			map[string]any{"role_id": v.auth.Role, "secret_id": secret})
	case VaultKubernetes:
		a, err = v.client.do(ctx, "PUT", "auth/"+v.auth.Mount+"/login", "",
			map[string]any{"role": v.auth.Role, "jwt": secret})
	}
	if err != nil {
		if fault.Is(err, fault.Invalid) { // a server's answer to a wrong secret id or role
			err = fault.New(fault.Denied, "the server refused the credential")
		}
		if fault.Is(err, fault.Denied) {
			err = fault.New(fault.Denied, "log in to Vault by %s", v.auth.Method).Because(err).
				WithHint("renew the credential: for a token, vault login")
		}
		return token{}, fault.Wrap(err, "log in to Vault")
	}
	if a.Auth.Seconds == 0 && v.auth.Method != VaultToken { // a root token alone does not end
		return token{}, errAnswer()
	}
	return v.accept(a.Auth)
}

// renewed extends a token.
func (v *Vault) renewed(ctx context.Context, t token) (token, error) {
	a, err := v.client.do(ctx, "PUT", "auth/token/renew-self", t.text, map[string]any{})
	if err != nil {
		return token{}, err
	}
	if a.Auth.Token = t.text; a.Auth.Seconds == 0 {
		return token{}, errAnswer()
	}
	return v.accept(a.Auth)
}

// accept returns the token of an answer.
func (v *Vault) accept(a auth) (token, error) {
	if a.Token == "" || len(a.Token) > maxToken || hasControl(a.Token) {
		return token{}, errAnswer()
	}
	t := token{text: a.Token, renewable: a.Renewable}
	if a.Seconds == 0 {
		return t, nil
	}
	var err error
	now := v.now()
	if t.span, err = spanOf(a.Seconds, now); err == nil {
		t.full = t.span.until.Sub(now)
	}
	return t, err
}

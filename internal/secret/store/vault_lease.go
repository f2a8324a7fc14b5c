package store

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// vaultLease is the lease of one secret.
type vaultLease struct {
	vault   *Vault
	name    string
	issuer  string // the token under which it was given, and with which it ends
	renewAt time.Time
}

// span is the time that a server grants: two thirds of it pass before it is extended.
type span struct{ again, until time.Time } // zero: it does not end

// spanOf returns the span of a number of seconds from now.
func spanOf(seconds int64, now time.Time) (span, error) {
	if seconds < 0 {
		return span{}, errAnswer()
	}
	seconds = min(seconds, int64(limit.Life/time.Second))
	d := time.Duration(seconds) * time.Second
	return span{again: now.Add(d / 3 * 2), until: now.Add(d)}, nil
}

// within returns the span that ends, and is renewed, when the first of s and t is. A zero t does not end.
func (s span) within(t span) span {
	if !t.until.IsZero() && t.until.Before(s.until) {
		s.until = t.until
	}
	if !t.again.IsZero() && t.again.Before(s.again) {
		s.again = t.again
	}
	return s
}

// set notes a new duration of the lease, and the token under which it was given. It returns when the lease ends.
func (l *vaultLease) set(seconds int64, t token) (time.Time, error) {
	s, err := spanOf(seconds, l.vault.now())
	if err != nil {
		return time.Time{}, err
	}
	s = s.within(t.span)
	l.renewAt = s.again
	return s.until, nil
}

func (l *vaultLease) id() string { return l.name }

func (l *vaultLease) again() time.Time { return l.renewAt }

func (l *vaultLease) renew(ctx context.Context) (time.Time, error) {
	a, t, err := l.vault.call(ctx, "PUT", "sys/leases/renew", map[string]any{"lease_id": l.name})
	if err != nil {
		return time.Time{}, fault.Wrap(err, "renew a lease of Vault")
	}
	if a.LeaseID != l.name {
		return time.Time{}, fault.Wrap(errAnswer(), "renew a lease of Vault")
	}
	if t.text != l.issuer {
		return time.Time{}, fault.New(fault.Unavailable, "cannot renew a lease of Vault: it ends with an earlier token").
			WithHint("read the secret again")
	}
	return l.set(a.LeaseDuration, t)
}

func (l *vaultLease) revoke(ctx context.Context) error { return l.vault.Revoke(ctx, l.name) }

// Revoke ends a lease, and returns once its secret is worth nothing. A caller that stored the result of Value.Lease
// can so revoke after a crash.
func (v *Vault) Revoke(ctx context.Context, lease string) error {
	_, _, err := v.call(ctx, "PUT", "sys/leases/revoke", map[string]any{"lease_id": lease, "sync": true})
	return fault.Wrap(err, "revoke a lease of Vault")
}

package wallet

import (
	"context"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
)

// Signer is a Source that signs with the keys of grants for SSH; *line.Client is one.
type Signer interface {
	Sign(ctx context.Context, grant, host, method, path string, data []byte) ([]byte, error)
}

// Terminates reports whether a grant, even a revoked one, is for SSH at a port of a host, so that the gate must be its
// server.
func (w *Wallet) Terminates(h policy.Host, port uint16) bool {
	return w.any(func(g grant.Issued) bool { return g.Terminates(h, port) })
}

// Login is a command over SSH that a grant allows.
type Login struct {
	*Carry
	Grant grant.Issued
	Git   grant.GitCommand // as it must be sent
	Host  policy.Host
}

// Login decides which grant a command over SSH may use, and counts that as a use. As after Decide, the caller must ask
// Gone, and call Done, or Cancel if the command did not leave.
func (w *Wallet) Login(l grant.Login) (*Login, *grant.Refusal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	g, git, no := w.set.Login(l, w.spentLocked(now), now)
	if no != nil {
		return nil, no
	}
	one := &Login{Carry: &Carry{w: w, uses: Carried{g.Name: g}, Grants: Carried{g.Name: g}}, Grant: g, Git: git}
	for _, h := range l.Hosts {
		if g.Terminates(h, l.Port) {
			one.Host = h
		}
	}
	w.counts[g.Name].add(now, g.Rate)
	return one, nil
}

// Sign asks the broker for a signature of data with the key of the grant, or without data for its public key.
func (l *Login) Sign(ctx context.Context, data []byte) ([]byte, error) {
	w := l.w
	w.mu.Lock()
	source, stands := w.source, w.standsLocked(l.Grant.Name, l.Grant)
	w.mu.Unlock()
	switch {
	case !stands:
		return nil, fault.New(fault.Denied, "grant %s was revoked", l.Grant.Name)
	case source == nil:
		return nil, noBroker()
	}
	signer, ok := source.(Signer)
	if !ok {
		return nil, noBroker()
	}
	return signer.Sign(ctx, l.Grant.Name, l.Host.String(), l.Git.Method, l.Git.Path, data)
}

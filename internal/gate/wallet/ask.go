package wallet

import (
	"slices"

	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
)

// Pending is a grant whose secret a request must not carry until the owner approves it.
type Pending struct {
	Grant grant.Issued
	Each  bool // each request requires approval; otherwise the first to its host
}

// asksLocked reports whether a request to a host that would carry the secret of g requires approval.
func (w *Wallet) asksLocked(g grant.Issued, h policy.Host) bool {
	switch g.Ask {
	case "", grant.AskNever:
		return false
	case grant.AskFirst:
		return !slices.Contains(w.hosts[g.Name], h.String())
	}
	return true // also for a mode that this version does not know
}

// Review returns what has become of a pending grant, for a request to a host: whether it was revoked or changed, and
// whether it still requires approval.
func (w *Wallet) Review(p *Pending, h policy.Host) (gone, asks bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.standsLocked(p.Grant.Name, p.Grant), w.asksLocked(p.Grant, h)
}

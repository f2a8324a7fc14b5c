package wallet

import (
	"net/http"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/inject"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
)

// Into puts the values into a request, which is as it was decided about. If it fails, the request must not be sent.
func (c *Carry) Into(r *http.Request) error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	for _, p := range c.puts {
		v := c.values[p.Grant]
		if v == nil || !c.w.standsLocked(p.Grant, c.Grants[p.Grant]) {
			return fault.New(fault.Denied, "grant %s was revoked", p.Grant)
		}
		// A value that was rotated since it was fetched still goes out: the request is not later than the rotation.
		if err := inject.Into(r, p, v.bytes); err != nil {
			return fault.New(fault.Denied, "grant %s: %v", p.Grant, err).
				WithHint("compare the sites of the grant with the request: coppice grants NAME")
		}
	}
	return nil
}

// count is the uses of a grant: in total, and in the current and the last interval of its rate.
type count struct {
	used      int64
	begin     time.Time
	now, last int64
}

// turn begins the next interval if the current one has ended.
func (c *count) turn(now time.Time, per time.Duration) {
	switch since := now.Sub(c.begin); {
	case since >= 0 && since < per:
	case since >= per && since < 2*per:
		c.begin, c.last, c.now = c.begin.Add(per), c.now, 0
	default:
		c.begin, c.last, c.now = now, 0, 0
	}
}

// recent returns the uses within the last r.Per, as if those of the last interval were spread evenly.
func (c *count) recent(now time.Time, r policy.Rate) int64 {
	if r.Per <= 0 {
		return 0
	}
	c.turn(now, r.Per)
	left := float64(r.Per-now.Sub(c.begin)) / float64(r.Per)
	return c.now + int64(left*float64(c.last)+0.999)
}

func (c *count) add(now time.Time, r policy.Rate) {
	c.used++
	if r.Per > 0 {
		c.turn(now, r.Per)
		c.now++
	}
}

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

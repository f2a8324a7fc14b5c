package wallet

import (
	"time"

	"github.com/coppice-dev/coppice/internal/policy"
)

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

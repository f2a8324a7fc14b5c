//go:build linux

package command

import "testing"

// Whatever comes first, the end or the going away, and whether the command began, it is told
// once that he left, and not without that he came.
func TestThePresenceEndsOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		steps string
		want  int
	}{{"", 0}, {"l", 0}, {"ll", 0}, {"c", 0}, {"cl", 1}, {"lc", 1}, {"cll", 1}, {"lcl", 1}} {
		n := 0
		p := &presence{tell: func() { n++ }}
		for _, s := range c.steps {
			if s == 'c' {
				p.came()
			} else {
				p.leaves()
			}
		}
		if n != c.want {
			t.Errorf("%q: told %d times, want %d", c.steps, n, c.want)
		}
	}
	nobody := &presence{}
	nobody.came()
	nobody.leaves()
}

//go:build linux

package command

import "testing"

// TestPresence_RecordsDetachOnce checks that the detach is recorded once, in whichever order
// the command exits and the client disconnects, and only if the attach was recorded.
func TestPresence_RecordsDetachOnce(t *testing.T) {
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
			t.Errorf("%q: recorded %d times, want %d", c.steps, n, c.want)
		}
	}
	none := &presence{}
	none.came()
	none.leaves()
}

package limit

import "time"

// Numbers that several packages use alike. They are in no table: what they bound is not made by a sandbox.
const (
	// Listed is how many names or paths a message lists one by one.
	Listed = 20
	// Removals is how many sandboxes are removed at once: it is the disk that takes the time.
	Removals = 8
	// Life is the longest time for which anything is given a time to live: every clock and format can tell
	// when it ends.
	Life = 100 * 365 * 24 * time.Hour
)

package limit

import "time"

// Numbers that several packages share. They are not in the table: what they bound is not made by a sandbox.
const (
	// Listed is the maximum number of names or paths that a message lists.
	Listed = 20
	// Removals is the maximum number of concurrent removals of sandboxes; the disk is the bottleneck.
	Removals = 8
	// Life is the maximum time to live of anything: any clock and format can represent when it ends.
	Life = 100 * 365 * 24 * time.Hour
	// Trial is the maximum time of a trial that a client of the API requests, and that of one without a timeout.
	Trial = 24 * time.Hour
	// TrialsOfOne is the maximum number of concurrent trials of one sandbox; further ones wait.
	TrialsOfOne = 2
)

// InLife reports whether a number of milliseconds in a request is neither negative nor more than Life. Beyond 292 years
// its conversion to a time.Duration overflows, and would become any other time, such as one that has passed.
func InLife(ms int64) bool { return ms >= 0 && ms <= Life.Milliseconds() }

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
)

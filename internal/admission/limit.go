package admission

import "github.com/coppice-dev/coppice/internal/limit"

// SoftLimit returns the soft memory limit of a daemon that, together with its sandboxes, may use available bytes: a
// quarter, and at least limit.DaemonMemory if that is at most half.
func SoftLimit(available int64) int64 {
	return max(available/4, min(limit.DaemonMemory, available/2))
}

// ForRequests returns the part of a soft limit that requests may take together: half. The rest is for the daemon's
// other data, and for garbage.
func ForRequests(soft int64) int64 { return soft / 2 }

// ForHeap returns the part of a soft limit that the heap may hold before requests are refused: three quarters. Beyond
// the limit, the collector would take half of all processor time.
func ForHeap(soft int64) int64 { return soft / 4 * 3 }

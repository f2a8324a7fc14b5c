package admission

import "github.com/coppice-dev/coppice/internal/limit"

// SoftLimit is the soft memory limit of a daemon that may use so many bytes, with its
// sandboxes: a quarter, and at least limit.DaemonMemory where that is not more than half.
func SoftLimit(available int64) int64 {
	return max(available/4, min(limit.DaemonMemory, available/2))
}

// ForRequests is the part of a soft limit that requests may take together: half. The
// rest is for what the daemon holds besides, and for garbage.
func ForRequests(soft int64) int64 { return soft / 2 }

// ForHeap is what of a soft limit the heap may hold before requests are refused: three
// quarters. Beyond the limit the collector would take half of all processor time.
func ForHeap(soft int64) int64 { return soft / 4 * 3 }

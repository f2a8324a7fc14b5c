// Package refusals sums up the system calls of a sandbox that are refused, for the keeper.
//
// A hostile program can have a call refused as often as it likes, so a Summary reports equal
// refusals together, and at intervals. A Tally, in memory that the keeper shares, counts all of
// them before the caller gets its answer: a sandbox that kills init leaves a count that is larger
// than what was reported.
//
// It is imported by guest (init) and gvisor, which refuse calls, and by keeper, which makes the
// Tally. It imports initlink, procs and fault.
package refusals

// Package refusals summarizes the refused system calls of a sandbox for the keeper.
//
// A hostile program can have a call refused as often as it likes, so a Summary reports equal refusals together, and at
// intervals. A Tally, in memory that the keeper shares, counts each refusal before the caller gets its answer: if a
// sandbox kills init, the count is larger than the number that was reported.
//
// It is imported by guest (init) and gvisor, which refuse calls, and by keeper, which makes the
// Tally. It imports initlink, procs and fault.
package refusals

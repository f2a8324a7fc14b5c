// Package audit turns what was observed in a sandbox into records of the ledger, and records
// into summaries: the evidence of gate and keeper, the programs that were started, the score of
// risk by which attempts are compared, and the budget that bounds what a sandbox adds to the
// ledger. It is pure: callers pass the time, append the records and keep the state.
//
// The engine imports it.
package audit

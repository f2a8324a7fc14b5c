// Package audit turns what was observed in a sandbox into records of the ledger, and records
// into answers: the evidence of gate and keeper, the programs that were started, the score of
// risk by which attempts are compared, Budgets, which bound what a sandbox adds to the ledger,
// Cleaners, which redact what is kept of a sandbox, and Reader, which shows, follows, verifies and
// exports records. Book writes the ledger, before what it says is done, and compares it with what came
// about after a crash; Journals and Programs make records of what gate, keeper and kernel observed. The
// rest is pure: callers pass the time and keep the state.
//
// The engine imports it.
package audit

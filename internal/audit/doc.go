// Package audit turns what was observed in a sandbox into records of the audit log, and records into answers:
// the evidence of gate and keeper, the programs that were started, the score of risk by which attempts are
// compared. Budgets bounds what a sandbox adds to the audit log, Cleaners redacts what is kept of a sandbox,
// and Reader shows, follows, verifies and exports records. Book records operations before they are done, and
// after a crash compares the records with what happened; Journals and Programs make records of what gate,
// keeper and kernel observed. The rest is pure: callers pass the time and keep the state.
//
// The engine imports it.
package audit

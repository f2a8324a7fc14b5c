// Package audit turns observations of a sandbox into records of the audit log, and answers queries about records: the
// evidence of gate and keeper, the programs that were started, and the risk score by which attempts are compared.
// Budgets bounds how much a sandbox adds to the audit log, Cleaners redacts the texts of a sandbox, and Reader shows,
// follows, verifies and exports records. Book records operations before they are done, and after a crash compares the
// records with what happened. Journals and Programs make records of the observations of gate, keeper and kernel. The
// rest is pure: callers pass the time and keep the state.
//
// The engine imports it.
package audit

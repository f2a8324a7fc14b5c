// Package ledger stores the audit log: what was run, changed, reached and denied, as an append-only chain of
// records for each sandbox, and one signed Merkle tree over those of the whole host. docs/LEDGER.md describes
// the format on the disk and how a third party verifies it; the bytes are package format's.
//
// One process has the ledger open (Open) and appends; any process that may read the files reads and verifies
// them meanwhile (Reader), without a lock. Reading and verifying work on every system, appending and
// exporting on Linux. It imports vfs, fault and format.
//
// How it is durable: a batch of records is written to the file log/intake, with the signed checkpoint of the
// log after it, and one fsync; then it counts, and only then is it written to the files that are read. What
// is in the intake and not there after a crash is written again, at the same places. From time to time these
// files are flushed, and a new intake starts (fold).
package ledger

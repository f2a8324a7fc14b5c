// Package ledger stores the audit log: what was run, changed, reached and denied, as an append-only chain of records
// for each sandbox, and one signed Merkle tree over the records of the whole host. docs/LEDGER.md describes the
// format on the disk and how a third party verifies it; package format implements the format.
//
// One process has the ledger open (Open) and appends; any process that may read the files reads and verifies
// them meanwhile (Reader), without a lock. Reading and verifying work on every system, appending and
// exporting on Linux. It imports vfs, fault and format.
//
// Durability: a batch of records is written to the file log/intake, followed by the signed checkpoint of the log,
// with one fsync. From then on it counts, and only then is it written to the files that are read. After a crash,
// records of the intake that are missing there are written again, at the same places. From time to time these files
// are flushed, and a new intake is started (fold).
package ledger

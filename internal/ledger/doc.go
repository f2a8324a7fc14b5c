// Package ledger keeps the record of what was run, changed, reached and denied: an
// append-only chain of records for each sandbox, and one Merkle tree over those of the
// whole host, signed. What it looks like on the disk, and how a stranger verifies it, is
// in docs/LEDGER.md; the bytes are package format's.
//
// One process has the ledger open (Open) and appends; anybody who may read the files
// reads and verifies them meanwhile (Reader), without a lock. Reading and verifying work on
// every system, appending and exporting on Linux. It imports vfs, fault and its own format.
//
// How it is durable: a batch of records goes to the file log/intake, with the signed
// checkpoint of the log after it, and one fsync; then it counts, and only then is it
// written to the files that are read. What is in the intake and not there after a crash
// is written again, at the same places. Now and then these files are flushed, and the
// intake begins anew (fold).
package ledger

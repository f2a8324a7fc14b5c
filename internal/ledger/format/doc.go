// Package format is the audit log as bytes: records and their canonical JSON, the Merkle tree of their
// hashes, signed notes, and bundles that a third party verifies. It is pure: it reads only what it is given.
// docs/LEDGER.md describes the same in words, so that a verifier can be written without it.
//
// All input may be hostile: memory is bounded, and what is not understood is refused. Any package may import
// it; it imports only fault.
package format

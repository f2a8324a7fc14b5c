// Package format encodes and verifies the audit log: records and their canonical JSON, the Merkle tree of their
// hashes, signed notes, and bundles that a third party verifies. It does no I/O of its own: it reads only its
// arguments. docs/LEDGER.md describes the format in words, so that a verifier can be written without this package.
//
// All input may be hostile: memory is bounded, and unknown input is refused. Any package may import it; it imports
// only fault.
package format

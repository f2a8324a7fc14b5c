// Package format is the ledger as bytes: records and their canonical JSON, the Merkle
// tree of their hashes, signed notes, and bundles that a stranger verifies. It is
// pure: it reads what it is given, and nothing else. docs/LEDGER.md says the same in
// words, so that a verifier can be written without it.
//
// Everything that is read here may come from somebody hostile: memory is bounded, and
// what is not understood is refused. Any room may import it; it imports fault alone.
package format

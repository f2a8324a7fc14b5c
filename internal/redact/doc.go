// Package redact replaces secrets in bytes that hostile or careless programs wrote, before they touch a disk:
// bytes in, bytes out, in pieces of any size. docs/redaction.md says what counts as a secret; rules.txt has
// the known formats. It does no I/O except to a writer that it is given, and imports fault. Packages that
// store output, arguments, names, addresses or headers import it.
//
// How it works, in the same way for all kinds of secrets:
//
//	bytes ── automaton ──► values that the host knows      ─► spans ──► cover ──► bytes
//	                  └──► keys of rules ── head, body, tail ─►
//	      ── lines ── patterns of the policy ───────────────►
//	      ── tokens ── entropy ─────────────────────────────►
//
// A span is a part of the input that is to be replaced. Whether there is one, and where it begins, follows
// from a bounded number of bytes of the input, which are buffered; so it does not depend on how the input was
// cut. The union of spans is replaced: no part of a secret is left because another one began inside it.
package redact

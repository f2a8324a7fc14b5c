// Package redact replaces secrets in bytes that hostile or careless programs wrote, before they are written to a
// disk: bytes in, bytes out, in pieces of any size. docs/redaction.md defines what counts as a secret; rules.txt has
// the known formats. It does no I/O except to a given writer, and imports fault. Packages that store output,
// arguments, names, addresses or headers import it.
//
// All kinds of secrets are processed in the same way:
//
//	bytes ── automaton ──► values that the host knows      ─► spans ──► cover ──► bytes
//	                  └──► keys of rules ── head, body, tail ─►
//	      ── lines ── patterns of the policy ───────────────►
//	      ── tokens ── entropy ─────────────────────────────►
//
// A span is a part of the input that is replaced. A bounded number of bytes, which are buffered, determines whether
// there is a span and where it begins; so it does not depend on how the input was split. The union of spans is
// replaced: no part of a secret is left because another one began inside it.
package redact

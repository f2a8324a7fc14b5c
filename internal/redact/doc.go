// Package redact replaces secrets in bytes from a hostile or careless author, before
// they touch a disk: bytes in, bytes out, in pieces of any size. What it takes for a secret
// is said in docs/redaction.md; rules.txt has the known formats. It does no I/O but to a
// writer that it is given, and imports fault. Whatever keeps output, arguments, names,
// addresses or headers imports it.
//
// How it works, once for all kinds of secrets:
//
//	bytes ── automaton ──► values that the host knows      ─► spans ──► cover ──► bytes
//	                  └──► keys of rules ── head, body, tail ─►
//	      ── lines ── patterns of the policy ───────────────►
//	      ── tokens ── entropy ─────────────────────────────►
//
// A span is a part of the input that is to go. Whether there is one, and where it begins,
// follows from a bounded number of bytes of the input, which are waited for; so it is the
// same however the input was cut. What spans cover is dropped as their union: no part of
// a secret is left because another one began inside it.
package redact

// Package scrub finds the values of secrets in what a server answers, and replaces them with text of the same length: a
// value that was put into a request must not come back into the sandbox. It finds a value as it is, and as base64,
// hexadecimal digits, UTF-16, percent-encoded, escaped in JSON, or in one case; across any boundary between chunks.
// Where a service escapes some of its characters only, the runs between them are found. It does not find a value that
// is encrypted, compressed (except by Decoded), or returned in pieces.
//
// Package gate imports it; it imports no package of the project.
package scrub

// Package scrub finds the values of secrets in what a server answers, and replaces them with text of the same length: a
// value that was put into a request must not come back into the sandbox. It finds a value as it is, and as base64,
// hexadecimal digits, percent-encoded, or escaped in JSON; across any boundary between chunks. It does not find a value
// that is encrypted, compressed (except by Decoded), or returned in pieces.
//
// Package gate imports it; it imports no package of the project.
package scrub

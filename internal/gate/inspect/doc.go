// Package inspect parses the HTTP requests of one connection of a sandbox, and forwards those that a Judge allows. It
// terminates TLS with a certificate of an Authority that only the sandbox trusts, verifies the server as the host
// would, and uses the same version of HTTP on both sides: one connection inside is one connection outside.
//
// Denied under any policy, because two programs could interpret it differently or because it cannot be inspected:
//
//	framing   Content-Length with Transfer-Encoding, more than one of either, codings
//	          other than chunked, chunk extensions, bare CR or LF, folded headers
//	target    anything but a path: CONNECT, absolute-form, "*"
//	Host      more than one, none, or another name than the connection is for
//	Upgrade   anything but a WebSocket; HTTP/2 without TLS
//	headers   those that make frameworks use another method or path than the request's
//
// Requests over HTTP/2 that net/http refuses before it calls the handler (RST_STREAM, GOAWAY, 400, 431) are reported as
// denials too: watched recognizes them in the frames.
//
// Answers are counted before they are passed on: informational responses, heads, bodies and trailers, but not the
// chunks, frames and TLS records that the gate writes around them.
//
// The package cannot see the meaning of an allowed request to the server.
//
// Package gate imports it; it imports policy.
package inspect

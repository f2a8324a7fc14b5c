// Package line is the connection on which the gate of a sandbox asks the broker for the values of secrets: a
// SOCK_SEQPACKET socket whose messages are one line of JSON, of at most 4 KiB with its newline, and the bytes of a
// value, of at most 16 KiB. It imports fault and unixsock.
//
//	keeper -> broker   {"ticket":BASE64}                              the first message
//	broker -> keeper   {"ok":true}                                    or {"not":"","why":TEXT,"hint":TEXT}, and the end
//	gate -> broker     {"get":GRANT,"id":N,"host":H,"method":M,"path":P}
//	gate -> broker     {"sign":GRANT,"id":N,"host":H,"method":M,"path":P}, and the data to sign
//	broker -> gate     {"is":GRANT,"id":N,"until":RFC3339,"version":V}, and the value
//	                   {"not":GRANT,"id":N,"why":TEXT,"hint":TEXT,"retry":SECONDS}
//	                   {"drop":GRANT}                                 forget its value now
//
// A ticket belongs to one sandbox, and the broker serves a line only the grants that are registered for it. So what
// authorizes a gate is its end of the line: the keeper of the sandbox connects (Dial) and passes the descriptor to the
// gate, which reads answers (NewClient). The keeper reads no value. Server is the broker's end.
//
// The answer to a sign is a signature; without data, it is the public key. The broker gives no value of a grant that
// signs, and signs nothing for another one.
//
// A message that is not as above ends the line: both ends are programs of the same version. The broker answers each get
// once, and sends {"drop"} after every answer with a value that is no longer valid.
package line

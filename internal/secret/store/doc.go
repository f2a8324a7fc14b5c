// Package store reads and writes the values of secrets where their owner keeps them: files that are encrypted with age,
// plain files, variables of an environment, the output of programs, and HashiCorp Vault or OpenBao. Only the broker, a
// process that holds values for the gates of sandboxes, may import it: neither the daemon nor a keeper nor a gate opens
// a store. It imports fault, limit and vfs.
//
// # Contract
//
// Parse reads what a user writes after --from, and returns the store and the Ref of a secret in it. Every Store returns
// values that CheckValue accepts, and errors of package fault:
//
//	NotFound     the store has no such secret
//	Unavailable  the store is locked, sealed, out of reach, or its value has expired; the hint says how to unlock it
//	Denied       the store refuses the caller, or another user could read what it stores
//	Unsupported  the store cannot be written
//	Invalid      the reference or the value is wrong
//	Corrupt      stored data is not what the store wrote; other secrets of the store stay readable
//	TooLarge     a value or an answer exceeds its bound
//	Timeout      a program or a server did not answer in time
//
// A store keeps no value between calls, starts no goroutine that outlives a call, and renews nothing on its own: Value
// says when to call Renew. The caller closes each Value.
//
// # Threats
//
// Values must not reach a log, an error, or a file in plain text. A Value prints as "[secret]" in every format. No
// error contains a value, the answer of a server, or what a program prints on its standard output. The first line that
// a failing program writes to its standard error is in the error, without the words that its output has as well: a
// program that writes a value there alone would reveal it.
//
// Files that another user could have written or read are refused, as are links in the place of a file. A process that
// can write to the directory of the age store and knows a recipient can replace a secret with any value that it knows,
// but not with another of the owner's secrets, since each file names its secret. Commands run without a shell. A server
// is trusted with what it is asked for only: it can neither redirect a request, which has the token, nor make the
// broker read without bound.
//
// Close overwrites the bytes of a Value. Copies that libraries make on the way (decoders of JSON, buffers of
// connections and pipes) are not overwritten before the garbage collector reuses them. The broker's memory therefore
// must not be dumped, whatever this package does.
package store

// Package wallet is the grants of one sandbox at work in its gate: it decides which requests carry a secret, counts
// their uses, keeps the values for at most a minute, and removes them from answers. It asks the broker for values, and
// waits for its answer, but for nothing else. Of a grant for SSH it asks for signatures.
//
// The package gate imports it; it imports grant, gate/inject, gate/scrub, secret/line, policy and fault.
package wallet

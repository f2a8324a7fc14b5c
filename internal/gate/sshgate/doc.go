// Package sshgate ends SSH in the gate: it is the server of a sandbox's SSH client, and a client of the real server.
// The sandbox logs in without a key, and may run one command of git; the gate decides about it, checks the key of the
// server, and logs in with a key that it does not have: the broker signs.
//
// Both ends are hostile. What is neither a command of git nor an environment variable of one is refused in words: other
// commands, shells, terminals, subsystems, and forwarding in any direction.
//
// The package gate imports it; it imports fault and grant.
package sshgate

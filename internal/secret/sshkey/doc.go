// Package sshkey is private keys of SSH as values of secrets, and what the broker signs with one: the request of a user
// to log in, and nothing else. It imports fault.
package sshkey

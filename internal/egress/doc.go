//go:build linux

// Package egress controls the network traffic of sandboxes. It changes the rules in force and shows their decisions,
// presents pending requests for approval, connects to the ports that processes listen on, and creates honeytokens and
// reports their use.
//
// Control has no locks and no state in memory: rules are in the records of sandboxes, events in their journals, and
// decoys in a file of each sandbox, which no other code reads or writes. Control reaches what the lock of a sandbox
// guards only through Held, or in functions that take the lock as proof.
//
// A change of the rules is in the ledger and in the journal before it is in force. If the keeper does not accept it,
// keeper and record are reverted to the previous rules, which ledger and journal record too.
//
// It declares what it needs of the engine as interfaces: Sandboxes finds sandboxes and their boxes, and acquires
// locks; Held gives access to the box of a locked sandbox, and can start its command; Recorder writes the ledger. The
// engine imports it; it never imports the engine.
package egress

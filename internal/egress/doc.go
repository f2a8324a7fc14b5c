//go:build linux

// Package egress controls the network traffic of sandboxes. It changes the rules in force and shows
// their decisions, presents pending requests for approval, connects to the ports that processes
// listen on, and creates honeytokens and reports their use.
//
// Control has no locks and no state of its own in memory: which rules hold is in the records of
// sandboxes, what happened is in their journals, and their decoys are in a file of each, which
// nothing else reads or writes. What the lock of a sandbox guards it reaches through Held alone, or
// in functions that take the lock as proof.
//
// A change of the rules is in the ledger and in the journal before it is in force; if the keeper does
// not take it, keeper and record go back to the rules of before, and ledger and journal say so.
//
// It needs the engine for little, and declares that as interfaces: Sandboxes finds sandboxes and
// their boxes, and takes locks; Held gives the box of a sandbox whose lock is held, and can start its
// command; Recorder writes the ledger. The engine imports it; it never imports the engine.
package egress

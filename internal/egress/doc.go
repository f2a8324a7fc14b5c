//go:build linux

// Package egress controls what goes between sandboxes and the network. It shows the questions of
// gates that wait for a person, connects to the ports that processes listen on, and makes decoys
// and tells of those that are touched.
//
// Control has no locks and no state of its own in memory: what it decides is in the records of
// sandboxes, what happened is in their journals, and their decoys are in a file of each. What the
// lock of a sandbox guards it reaches through Held alone.
//
// It needs the engine for little, and declares that as interfaces: Sandboxes finds sandboxes and
// their boxes, and takes locks; Held starts what a connection needs. The engine imports it; it
// never imports the engine.
package egress

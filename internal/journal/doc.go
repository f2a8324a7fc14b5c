// Package journal is what happened between one sandbox and the network, which decoys were
// opened and which system calls refused: lines in a directory of the host, the newest
// 4 to 8 MiB of them. The keeper appends, and the daemon where no keeper lives; whoever
// may read the directory reads.
//
//	net.jsonl    the newest events
//	net.1.jsonl  those before; dropped when net.jsonl is full and takes its name
//	net.lock     flocked while a line is appended, or both files are opened
//
// A line is the JSON of an event, sealed by the journal's key (package seal): paths and addresses
// of requests may hold secrets. It is written at once and is at most 4 KiB. One that was torn by a
// crash is ended by the next writer and left out by readers, as is all that is no event. Lines are
// not synced to the disk: a machine that loses power may lose the last of them.
//
// The box and the engine may import it.
package journal

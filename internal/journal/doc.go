// Package journal records the network events, opened decoys and refused system calls of one sandbox: lines in a
// directory of the host, the newest 4 to 8 MiB of them. The keeper appends, or the daemon if no keeper runs; any
// process that may read the directory can read it.
//
//	net.jsonl    the newest events
//	net.1.jsonl  those before; removed when net.jsonl is full and takes its name
//	net.lock     flocked while a line is appended, or both files are opened
//
// A line is the JSON of an event, encrypted by the journal's key (package secretbox): paths and addresses of
// requests may contain secrets. It is written at once and is at most 4 KiB. The next writer ends a line that
// was torn by a crash; readers skip it, as they do everything that is not an event. Lines are not synced to
// the disk: a power loss may lose the last of them.
//
// Packages box and engine may import it.
package journal

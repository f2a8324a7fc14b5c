// Package wire is what travels between clients and the daemon: requests,
// results, errors and the frames of exec streams. Fields are only ever added.
// It imports none of ours.
package wire

// Package wire defines the messages between clients and the daemon: requests, results, errors and the frames of exec
// streams. Fields are only ever added. It imports no other package of Coppice.
package wire

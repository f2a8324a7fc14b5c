// Command coppice-broker holds the values of secrets of one home, for the gates of its
// sandboxes. The program coppice starts it; all of it is package broker.
package main

import (
	"os"

	"github.com/coppice-dev/coppice/internal/secret/broker"
)

func main() { os.Exit(broker.Main(os.Args, os.Environ())) }

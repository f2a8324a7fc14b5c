// Command coppice creates, runs, snapshots, rewinds and forks sandboxes. All of it is package cli.
package main

import (
	"os"

	"github.com/coppice-dev/coppice/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args)) }

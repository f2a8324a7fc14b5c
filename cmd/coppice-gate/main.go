// Command coppice-gate is the egress gate of one sandbox. The monitor of the sandbox starts it; all of it is
// package process.
package main

import (
	"os"

	"github.com/coppice-dev/coppice/internal/gate/process"
)

func main() { os.Exit(process.Main()) }

// Command coppice-sentry runs gVisor for one sandbox of tier gvisor. The coppice daemon
// starts it; all of it is package gvisor.
package main

import (
	"os"

	"github.com/coppice-dev/coppice/internal/box/gvisor"
)

func main() { os.Exit(gvisor.Main(os.Args)) }

//go:build !unix

package cli

import (
	"os"
	"os/signal"

	"github.com/coppice-dev/coppice/client/wire"
)

func watchSignals(
	leave func(), early func(signal int), began func() bool, _, readOnly bool,
) (names <-chan string, stop func()) {
	sigs := make(chan os.Signal, 4)
	signal.Notify(sigs, os.Interrupt)
	out, done := make(chan string, 4), make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-sigs:
				if !began() {
					const interrupt = 2 // the number of SIGINT on other systems
					early(interrupt)
					return
				}
				if readOnly {
					leave()
					return
				}
				select {
				case out <- "INT":
				case <-done:
					return
				}
			}
		}
	}()
	return out, func() { signal.Stop(sigs); close(done) }
}

// watchSize returns no sizes: this system has no signal for them.
func watchSize(*os.File) (sizes <-chan wire.Size, stop func()) { return nil, func() {} }

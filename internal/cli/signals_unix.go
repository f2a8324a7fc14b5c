//go:build unix

package cli

import (
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

// passed has the signals that are forwarded to the command.
var passed = map[os.Signal]string{
	syscall.SIGINT: "INT", syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP", syscall.SIGQUIT: "QUIT",
	syscall.SIGUSR1: "USR1", syscall.SIGUSR2: "USR2",
}

// ends has the signals that end the CLI while no command has started.
var ends = map[syscall.Signal]bool{syscall.SIGINT: true, syscall.SIGTERM: true, syscall.SIGHUP: true,
	syscall.SIGQUIT: true}

// impatient is how many times SIGINT or SIGTERM must arrive within a second to end the CLI instead of the command.
const impatient = 3

// watchSignals returns the names of signals as they arrive. With stays, the loss of a terminal does not affect the
// command: SIGHUP is not forwarded, and the CLI exits. With readOnly no signal is forwarded, so one that would end a
// program ends the CLI. SIGPIPE is caught, so that a closed stdout is an error of Write. leave is called when the CLI
// must exit. early is called, with the number of the signal, for a signal that ends the CLI while began reports that
// the command has not started. After stop no name is sent, and the signals are still caught: the program is about to
// exit with the code of the command, or because of the signal.
func watchSignals(
	leave func(), early func(signal int), began func() bool, stays, readOnly bool,
) (names <-chan string, stop func()) {
	sigs := make(chan os.Signal, 16)
	for s := range passed {
		signal.Notify(sigs, s)
	}
	signal.Notify(sigs, syscall.SIGPIPE)
	out, done := make(chan string, 16), make(chan struct{})
	release := func() { signal.Reset(slices.Collect(maps.Keys(passed))...) }
	go func() {
		var last time.Time
		times := 0
		for {
			select {
			case <-done:
				return
			case s := <-sigs:
				if n := s.(syscall.Signal); !began() && ends[n] {
					early(int(n))
					lapse(done, release)
					return
				}
				if n := s.(syscall.Signal); s == syscall.SIGHUP && stays || readOnly && ends[n] {
					leave()
					lapse(done, release)
					return
				}
				if readOnly {
					continue
				}
				if s == syscall.SIGINT || s == syscall.SIGTERM {
					if now := time.Now(); now.Sub(last) > time.Second {
						times, last = 1, now
					} else {
						times, last = times+1, now
					}
					if times >= impatient {
						leave()
						lapse(done, release)
						return
					}
				}
				if name := passed[s]; name != "" {
					select {
					case out <- name:
					case <-done:
						return
					}
				}
			}
		}
	}()
	return out, func() { close(done) }
}

// stuckAfter is how long this program may take to exit before signals kill it.
const stuckAfter = 2 * time.Second

// lapse calls release unless done is closed within stuckAfter: a program that should exit but cannot, such as while
// its stdout is a pipe that no process reads, must not keep every signal caught.
func lapse(done <-chan struct{}, release func()) {
	select {
	case <-done:
	case <-time.After(stuckAfter):
		release()
	}
}

// watchSize sends the size of a terminal whenever it changes.
func watchSize(f *os.File) (sizes <-chan wire.Size, stop func()) {
	sigs := make(chan os.Signal, 1)
	signal.Notify(sigs, syscall.SIGWINCH)
	out, done := make(chan wire.Size, 1), make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-sigs:
				cols, rows, ok := tty.Size(f)
				if !ok {
					continue
				}
				select {
				case out <- wire.Size{Cols: uint16(cols), Rows: uint16(rows)}:
				case <-done:
					return
				}
			}
		}
	}()
	return out, func() { signal.Stop(sigs); close(done) }
}

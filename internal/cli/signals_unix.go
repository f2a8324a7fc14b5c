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

// passed are the signals that reach the command instead of us.
var passed = map[os.Signal]string{
	syscall.SIGINT: "INT", syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP", syscall.SIGQUIT: "QUIT",
	syscall.SIGUSR1: "USR1", syscall.SIGUSR2: "USR2",
}

// ends are those of passed that end us while no command has begun.
var ends = map[syscall.Signal]bool{syscall.SIGINT: true, syscall.SIGTERM: true, syscall.SIGHUP: true,
	syscall.SIGQUIT: true}

// impatient is how many times SIGINT or SIGTERM must come, each within a second
// of the one before, to end us and not the command.
const impatient = 3

// watchSignals gives the names of signals as they come, but for SIGHUP where the
// loss of the terminal leaves the command alone: then we end. With readOnly no signal
// reaches the command, so each that would end a program ends us. SIGPIPE is caught, so
// that a closed stdout is an error of Write and not our end. leave is called
// when the user insists (impatient), and early, with the number of the signal, while began
// reports that the command has not begun. After stop no name comes any more, and the
// signals are still caught: this program is about to end with the exit code that the
// command's end, or the user's insistence, gave it.
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

// stuckAfter is the time that this program has to end before signals kill it.
const stuckAfter = 2 * time.Second

// lapse calls release unless done is closed within stuckAfter: this program is to end and cannot, such as
// while its stdout is a pipe from which no process reads, and must not be left with every signal caught.
func lapse(done <-chan struct{}, release func()) {
	select {
	case <-done:
	case <-time.After(stuckAfter):
		release()
	}
}

// watchSize gives the size of a terminal whenever it changes.
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

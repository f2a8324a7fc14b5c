package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long the terminal may take to show what is expected.
const patience = 60 * time.Second

// Terminal is a pseudoterminal on which a shell runs, and records its output. A driver types; its methods fail once the
// recording has failed.
type Terminal struct {
	master *os.File
	shell  *exec.Cmd
	begun  time.Time
	done   chan struct{} // closed when the output is read

	mu      sync.Mutex
	changed *sync.Cond
	clean   cleaner // guarded by mu
	screen  *Screen // guarded by mu
	cast    *Cast   // guarded by mu
	over    bool    // guarded by mu
	err     error   // guarded by mu: why the output could not be recorded
}

// Start starts the command as the session leader of a terminal with the size of the header.
func Start(shell *exec.Cmd, header Header) (*Terminal, error) {
	t := &Terminal{
		shell: shell, begun: time.Now(), done: make(chan struct{}),
		screen: NewScreen(header.Width, header.Height), cast: &Cast{Header: header},
	}
	t.changed = sync.NewCond(&t.mu)
	var slave *os.File
	var err error
	if t.master, slave, err = openPTY(header); err != nil {
		return nil, err
	}
	defer slave.Close()
	shell.Stdin, shell.Stdout, shell.Stderr = slave, slave, slave
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		return nil, errors.Join(err, t.master.Close())
	}
	go t.read()
	return t, nil
}

// openPTY opens a pseudoterminal.
func openPTY(size Header) (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	err = errors.Join(unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0), unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ,
		&unix.Winsize{Row: uint16(size.Height), Col: uint16(size.Width)}))
	n, numErr := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err = errors.Join(err, numErr); err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
	}
	return master, slave, err
}

// read records what is written to the terminal, until it is closed.
func (t *Terminal) read() {
	defer close(t.done)
	buf := make([]byte, 64<<10)
	for {
		n, err := t.master.Read(buf)
		t.mu.Lock()
		t.record(string(buf[:n]))
		t.over = err != nil
		t.mu.Unlock()
		t.changed.Broadcast()
		if err != nil {
			return
		}
	}
}

// record adds output to the recording. The caller holds mu.
func (t *Terminal) record(output string) {
	if t.err != nil {
		return
	}
	text, err := t.clean.clean(output)
	if err == nil {
		err = t.screen.Write(text)
	}
	if t.err = err; err == nil && text != "" {
		t.add(Output, text)
	}
}

// add adds an event. The caller holds mu.
func (t *Terminal) add(kind, text string) {
	t.cast.Events = append(t.cast.Events, Event{time.Since(t.begun).Seconds(), kind, text})
}

// See waits until the screen contains the text.
func (t *Terminal) See(text string) error {
	return t.wait(func(screen string) bool { return strings.Contains(screen, text) }, text)
}

// Prompt waits until the screen ends with the prompt.
func (t *Terminal) Prompt(prompt string) error {
	return t.wait(func(screen string) bool { return strings.HasSuffix(strings.TrimSpace(screen), prompt) }, prompt)
}

// wait waits until the condition holds for the screen.
func (t *Terminal) wait(holds func(screen string) bool, what string) error {
	late := time.AfterFunc(patience, t.changed.Broadcast)
	defer late.Stop()
	deadline := time.Now().Add(patience)
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.err == nil && !holds(t.screen.String()) {
		if t.over || time.Now().After(deadline) {
			return fmt.Errorf("the screen does not show %q but\n%s", what, t.screen)
		}
		t.changed.Wait()
	}
	return t.err
}

// Type types keys as a person does, one after the other.
func (t *Terminal) Type(keys string) error {
	for _, key := range keys {
		if _, err := t.master.WriteString(string(key)); err != nil {
			return err
		}
		time.Sleep(40 * time.Millisecond)
	}
	return nil
}

// Run types a command at the prompt of the shell, which must be shown, and a marker into the recording.
func (t *Terminal) Run(command string) error {
	t.mu.Lock()
	t.add(Marker, command)
	t.mu.Unlock()
	if err := t.Type(command); err != nil {
		return err
	}
	time.Sleep(300 * time.Millisecond)
	return t.Type("\r")
}

// Close ends the shell, and returns the recording.
func (t *Terminal) Close() (*Cast, error) {
	killErr := t.shell.Process.Kill()
	_ = t.shell.Wait() // it was killed
	err := errors.Join(killErr, t.master.Close())
	<-t.done
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cast, errors.Join(err, t.err)
}

package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os/exec"
	"time"

	"github.com/coppice-dev/coppice/examples/claude-code/model"
)

// Figures of a recording.
const (
	width, height = 100, 28
	longest       = 1.5 // seconds of a pause
	prompt        = "~/shop $"
	server        = "203.0.113.1:8080" // of the model
)

// record plays the story in a shell, and returns the recording. scripts/record prepares what it needs.
func record() (c *Cast, err error) {
	m := model.New(story(1500 * time.Millisecond))
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", server)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	go http.Serve(l, m) //nolint:errcheck,gosec // until we end

	shell := exec.Command("bash", "--norc", "--noprofile", "-i") //nolint:noctx // Close ends it
	t, err := Start(shell, Header{Version: 2, Width: width, Height: height, Title: title})
	if err != nil {
		return nil, err
	}
	err = errors.Join(play(t), m.Err())
	c, closeErr := t.Close()
	if err = errors.Join(err, closeErr); err != nil {
		return nil, err
	}
	c.shorten(longest)
	return c, nil
}

// play types what the user types.
func play(t *Terminal) error {
	pause := func(seconds float64) func() error {
		return func() error {
			time.Sleep(time.Duration(seconds * float64(time.Second)))
			return nil
		}
	}
	shell := func(command string) func() error {
		return func() error {
			if err := t.Prompt(prompt); err != nil {
				return err
			}
			time.Sleep(time.Second)
			return t.Run(command)
		}
	}
	see := func(text string) func() error { return func() error { return t.See(text) } }
	keys := func(keys string) func() error { return func() error { return t.Type(keys) } }
	for _, step := range []func() error{
		shell(start), see("shortcuts"), pause(5),
		keys(task), pause(0.5), keys("\r"), see(end), pause(3),
		keys("/exit"), pause(0.5), keys("\r"),
		// The snapshot may be named for its files, if it was taken late: then record again.
		shell(history), see("  rm -rf photos"), pause(2), shell(audit), pause(2), shell(host), pause(1),
		func() error { return t.Prompt(prompt) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

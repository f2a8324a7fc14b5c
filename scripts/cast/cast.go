package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// Cast is a recording of a terminal, an asciicast of version 2 (https://docs.asciinema.org/manual/asciicast/v2/).
type Cast struct {
	Header
	Events []Event
}

// Header is the first line of a cast.
type Header struct {
	Version int    `json:"version"` // 2
	Width   int    `json:"width"`   // in columns
	Height  int    `json:"height"`  // in rows
	Title   string `json:"title"`
}

// Event is one other line of a cast.
type Event struct {
	At   float64 // seconds since the start
	Kind string  // Output or Marker
	Text string
}

// The kinds of events.
const (
	Output = "o" // the terminal received Text
	Marker = "m" // the user typed the command Text
)

// Write writes the cast.
func (c *Cast) Write(w io.Writer) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	if err := out.Encode(c.Header); err != nil {
		return err
	}
	for _, e := range c.Events {
		if err := out.Encode([]any{e.At, e.Kind, e.Text}); err != nil {
			return err
		}
	}
	return nil
}

// ReadCast parses a cast. Times must not decrease.
func ReadCast(data []byte) (*Cast, error) {
	var c Cast
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		var err error
		if n == 1 {
			strict := json.NewDecoder(bytes.NewReader(lines.Bytes()))
			strict.DisallowUnknownFields()
			err = strict.Decode(&c.Header)
		} else {
			err = c.event(lines.Bytes())
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if c.Version != 2 || c.Width < 1 || c.Width > 500 || c.Height < 1 || c.Height > 500 || len(c.Events) == 0 {
		return nil, fmt.Errorf("not an asciicast of version 2 with events: %+v", c.Header)
	}
	return &c, nil
}

// event parses a line after the first.
func (c *Cast) event(line []byte) error {
	var e Event
	fields := []any{&e.At, &e.Kind, &e.Text}
	if err := json.Unmarshal(line, &fields); err != nil {
		return err
	}
	switch {
	case len(fields) != 3:
		return errors.New("an event has three fields")
	case e.Kind != Output && e.Kind != Marker:
		return fmt.Errorf("unknown kind of event %q", e.Kind)
	case e.At < 0, len(c.Events) > 0 && e.At < c.Events[len(c.Events)-1].At:
		return fmt.Errorf("the time %v is before that of the previous event", e.At)
	}
	c.Events = append(c.Events, e)
	return nil
}

// shorten reduces the pauses between events to at most longest seconds, and rounds times to milliseconds.
func (c *Cast) shorten(longest float64) {
	before, cut := 0.0, 0.0
	for i := range c.Events {
		e := &c.Events[i]
		if pause := e.At - before; pause > longest {
			cut += pause - longest
		}
		before = e.At
		e.At = math.Round((e.At-cut)*1000) / 1000
	}
}

// Command cast records the story that opens README.md, real Claude Code with a scripted model in a sandbox, as an
// asciicast, and draws an asciicast as an animated SVG. scripts/record runs it.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
)

const usage = `usage: cast record FILE      play the story, and write the recording
       cast draw FILE SVG    draw a recording`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cast:", err)
		os.Exit(1)
	}
}

// run executes one command.
func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "record":
		c, err := record()
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := c.Write(&b); err != nil {
			return err
		}
		return os.WriteFile(args[1], b.Bytes(), 0o644)
	case len(args) == 3 && args[0] == "draw":
		data, err := os.ReadFile(args[1])
		if err != nil {
			return err
		}
		c, err := ReadCast(data)
		if err != nil {
			return err
		}
		svg, err := c.SVG()
		if err != nil {
			return err
		}
		return os.WriteFile(args[2], svg, 0o644)
	}
	return errors.New(usage)
}

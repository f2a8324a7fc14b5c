package main

import (
	"fmt"
	"io"
	"strings"
)

// notes writes the section of a changelog about version, without its heading. The heading is "## VERSION", and
// a date or a remark may follow; without such a section, that of "## Unreleased" is taken.
func notes(out io.Writer, in io.Reader, version string) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	for _, want := range []string{version, "Unreleased"} {
		if s := section(string(text), want); s != "" {
			_, err := fmt.Fprintln(out, s)
			return err
		}
	}
	return fmt.Errorf("the changelog has no section ## %s or ## Unreleased", version)
}

// section returns the text between the heading whose first word is title and the next heading of its level.
func section(text, title string) string {
	for _, part := range strings.Split("\n"+text, "\n## ")[1:] {
		heading, body, _ := strings.Cut(part, "\n")
		if word, _, _ := strings.Cut(heading, " "); word == title {
			return strings.TrimSpace(body)
		}
	}
	return ""
}

// Package tty formats output for terminals: tables, progress, sizes and times, harmless forms of untrusted
// text, and raw mode. It imports visible.
package tty

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/coppice-dev/coppice/internal/visible"
)

// IsTerminal reports whether f is a terminal; nil is not.
func IsTerminal(f *os.File) bool { return f != nil && term.IsTerminal(int(f.Fd())) }

// Size returns a terminal's size in character cells; ok is false for other files.
func Size(f *os.File) (cols, rows int, ok bool) {
	cols, rows, err := term.GetSize(int(f.Fd()))
	return cols, rows, err == nil
}

// Raw puts a terminal into raw mode. restore undoes that, and may be called more than once.
func Raw(f *os.File) (restore func(), _ error) {
	old, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("put the terminal into raw mode: %w", err)
	}
	return func() { _ = term.Restore(int(f.Fd()), old) }, nil
}

// Bytes formats a size: "12 B", "3.4 MiB".
func Bytes(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/1024, 0
	for f >= 1023.95 && i < 5 {
		f /= 1024
		i++
	}
	return fmt.Sprintf("%.1f %ciB", f, "KMGTPE"[i])
}

// Ago formats how long before now t was: "just now", "5 min ago", "3 days ago".
func Ago(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case d < -2*time.Second:
		return t.Local().Format("2006-01-02 15:04") // in the future: a clock is wrong
	case d < 2*time.Second:
		return "just now"
	case d < time.Minute:
		return fmt.Sprintf("%d s ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	case d < 60*24*time.Hour:
		return fmt.Sprintf("%d days ago", int(d.Hours()/24))
	}
	return t.Local().Format("2006-01-02")
}

// Count formats a number with its noun, as visible.Count does.
func Count(n int, noun string) string { return visible.Count(n, noun) }

// Word quotes a word for a shell, as visible.Word does.
func Word(s string) string { return visible.Word(s) }

package visible

import (
	"strconv"
	"strings"
)

// plain are the characters that need no quotes in a shell word.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@%+,"

// Word quotes s as one word for a POSIX shell: unchanged if that is possible, else in single quotes. It does not
// escape invisible characters, as Clean does.
func Word(s string) string {
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Command formats a command and its arguments as a line for a POSIX shell.
func Command(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = Word(a)
	}
	return strings.Join(words, " ")
}

// Count formats a number with its noun: "1 path", "2 paths", "0 boxes".
func Count(n int, noun string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(noun, "s"), strings.HasSuffix(noun, "x"):
		noun += "es"
	default:
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

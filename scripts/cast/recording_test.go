package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The recording that opens README.md.
const castFile, svgFile = "../../docs/rewind.cast", "../../docs/rewind.svg"

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// recording returns the recording, and the screens after each event.
func recording(t *testing.T) (*Cast, []string) {
	t.Helper()
	c, err := ReadCast(read(t, castFile))
	if err != nil {
		t.Fatal(err)
	}
	s, screens := NewScreen(c.Width, c.Height), make([]string, 0, len(c.Events))
	for i, e := range c.Events {
		if e.Kind == Output {
			if err := s.Write(e.Text); err != nil {
				t.Fatalf("event %d: %v", i+1, err)
			}
		}
		screens = append(screens, s.String())
	}
	return c, screens
}

func TestRecording_IsSmall(t *testing.T) {
	t.Parallel()
	c, _ := recording(t)
	if c.Header != (Header{2, width, height, title}) {
		t.Errorf("header %+v", c.Header)
	}
	if end := c.Events[len(c.Events)-1].At; end < 20 || end > 60 {
		t.Errorf("it takes %v seconds", end)
	}
	before := 0.0
	for i, e := range c.Events {
		if e.At-before > longest+0.001 {
			t.Errorf("event %d comes after a pause of %v seconds", i+1, e.At-before)
		}
		before = e.At
	}
	for name, most := range map[string]int{castFile: 200 << 10, svgFile: 400 << 10} {
		if n := len(read(t, name)); n > most {
			t.Errorf("%s has %d bytes, more than %d", name, n, most)
		}
	}
}

// TestRecording_TellsTheStory checks what the recording shows, in this order.
func TestRecording_TellsTheStory(t *testing.T) {
	t.Parallel()
	c, screens := recording(t)
	at := 0
	for _, want := range []string{
		"$ " + start, "Claude Code", task, "coppice - ", tag, "rm -rf photos ~/.npm-global", "claude: command not found",
		"Rewind to a snapshot", "rewritten", "(Claude Code)", end, "$ " + history, "  rm -rf photos", tag, "$ " + audit, "$ " + host,
	} {
		i := slices.IndexFunc(screens[at:], func(s string) bool { return strings.Contains(s, want) })
		if i < 0 {
			t.Fatalf("after event %d, no screen shows %q", at+1, want)
		}
		at += i
	}
	var typed []string
	page := string(read(t, "../../examples/claude-code/README.md"))
	for _, e := range c.Events {
		if e.Kind == Marker {
			typed = append(typed, e.Text)
			// The tests of the documents check the commands there.
			if !strings.Contains(page, "$ "+e.Text+"\n") {
				t.Errorf("the page of the example does not have the command %s", e.Text)
			}
		}
	}
	if want := []string{start, history, audit, host}; !slices.Equal(typed, want) {
		t.Errorf("the user types %q, want %q", typed, want)
	}
}

// TestRecording_ShowsNothingOfItsHost checks that no screen has paths of the machine, or something like a token.
func TestRecording_ShowsNothingOfItsHost(t *testing.T) {
	t.Parallel()
	c, screens := recording(t)
	paths := regexp.MustCompile(`/(?:root|tmp|var|work|mnt|data|Users|home/\w+)\b`)
	tokens := regexp.MustCompile(`sk-\w+|[A-Za-z0-9+_]{32,}`)
	for i, screen := range screens {
		for _, m := range paths.FindAllString(screen, -1) {
			if m != "/home/you" {
				t.Fatalf("after event %d the screen shows %s of the host:\n%s", i+1, m, screen)
			}
		}
		if m := tokens.FindString(screen); m != "" {
			t.Fatalf("after event %d the screen shows %q", i+1, m)
		}
		if name, err := os.Hostname(); err == nil && len(name) > 3 && strings.Contains(c.Events[i].Text, name) {
			t.Errorf("event %d has the name of this machine", i+1)
		}
	}
}

// TestRecording_IsDrawn checks that the picture is what this program draws, and that GitHub shows it: it has no scripts
// and loads nothing.
func TestRecording_IsDrawn(t *testing.T) {
	t.Parallel()
	c, _ := recording(t)
	svg, err := c.SVG()
	if err != nil {
		t.Fatal(err)
	}
	got := read(t, svgFile)
	if !bytes.Equal(got, svg) {
		t.Errorf("%s is not drawn from the recording: go run ./scripts/cast draw docs/rewind.cast docs/rewind.svg", svgFile)
	}
	rest := strings.ReplaceAll(string(got), `xmlns="http://www.w3.org/2000/svg"`, "")
	if m := regexp.MustCompile(`(?i)<script|<foreignObject|<image|javascript:|\bon\w+=|@import|url\(|href="[^#]|://`).
		FindString(regexp.MustCompile(`>[^<]*</text>`).ReplaceAllString(rest, "></text>")); m != "" {
		t.Errorf("%s contains %q", svgFile, m)
	}
	if readme := string(read(t, "../../README.md")); !strings.Contains(readme, "](docs/rewind.svg)](docs/rewind.cast)") {
		t.Error("README.md does not show the recording")
	}
}

package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/secretbox"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func event(i int) wire.NetEvent {
	return wire.NetEvent{Time: began.Add(time.Duration(i) * time.Second), Kind: wire.NetDeny,
		Name: fmt.Sprintf("h%d.example", i), Port: 443}
}

// at is a place whose lines are sealed.
func at(dir string) Place { return Place{Dir: dir, Key: bytes.Repeat([]byte{7}, secretbox.Size)} }

func opened(t *testing.T, dir string) *Journal {
	t.Helper()
	j, err := Open(at(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func names(evs []wire.NetEvent) (list []string) {
	for _, ev := range evs {
		list = append(list, ev.Name)
	}
	return list
}

func TestRead_ReturnsAppendedEvents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if evs, err := Read(at(dir), Query{}); err != nil || len(evs) != 0 {
		t.Fatalf("without a journal: %v, %v", evs, err)
	}
	j := opened(t, dir)
	for i := range 5 {
		ev := event(i)
		if i == 3 {
			ev.Kind = wire.NetConnect
		}
		if err := j.Append(ev); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		q    Query
		want string
	}{
		{Query{}, "h0.example h1.example h2.example h3.example h4.example"},
		{Query{Last: 2}, "h3.example h4.example"},
		{Query{Since: began.Add(3 * time.Second)}, "h3.example h4.example"},
		{Query{Kinds: []string{wire.NetDeny}, Last: 2}, "h2.example h4.example"},
		{Query{Kinds: []string{"other"}}, ""},
		{Query{Last: -1}, ""},
	} {
		evs, err := Read(at(dir), c.q)
		if got := strings.Join(names(evs), " "); err != nil || got != c.want {
			t.Errorf("%+v: %q, %v; want %q", c.q, got, err, c.want)
		}
	}
	if err := errors.Join(j.Close(), j.Close()); err != nil {
		t.Error(err)
	}
	if err := j.Append(event(9)); err == nil {
		t.Error("a closed journal accepted an event")
	}
}

// TestRead_ByTime_OrdersEvents covers a counted denial, which is appended seconds after it happened.
func TestRead_ByTime_OrdersEvents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := opened(t, dir)
	same := event(2)
	same.Name = "same.example"
	for _, ev := range []wire.NetEvent{event(1), event(3), event(0), event(2), same} {
		if err := j.Append(ev); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		last int
		want string
	}{
		{0, "h0.example h1.example h2.example same.example h3.example"}, {2, "same.example h3.example"},
	} {
		evs, err := Read(at(dir), Query{Last: c.last, ByTime: true})
		if got := strings.Join(names(evs), " "); err != nil || got != c.want {
			t.Errorf("the last %d: %q, %v; expected %q", c.last, got, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var got []string
	_ = Follow(ctx, at(dir), Query{Last: 2, ByTime: true}, func(ev wire.NetEvent) error {
		if got = append(got, ev.Name); len(got) == 3 {
			cancel()
		}
		return nil
	})
	if want := []string{"", "same.example", "h3.example"}; !slices.Equal(got, want) {
		t.Errorf("followed: %q, expected %q", got, want)
	}
}

func TestJournal_SkipsTornLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := opened(t, dir)
	if err := j.Append(event(0)); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, current)
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(whole) {
		torn := append(append(slices.Clone(whole), "\x00junk\n{}\nnull\n"...), whole[:cut]...)
		if err := os.WriteFile(name, torn, 0o600); err != nil {
			t.Fatal(err)
		}
		evs, err := Read(at(dir), Query{})
		if err != nil || len(evs) != 1 {
			t.Fatalf("cut at %d: %d events, %v", cut, len(evs), err)
		}
		if err := j.Append(event(1)); err != nil {
			t.Fatal(err)
		}
		evs, err = Read(at(dir), Query{})
		want := 2
		if cut == len(whole)-1 {
			want = 3 // only its newline was torn off
		}
		if err != nil || len(evs) != want || evs[want-1].Name != "h1.example" {
			t.Fatalf("cut at %d, and appended: %v, %v", cut, evs, err)
		}
	}
}

func TestAppend_BoundsLines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := opened(t, dir)
	long := strings.Repeat("\x1b", 1<<20)
	if err := j.Append(
		wire.NetEvent{Kind: wire.NetDeny, Name: long, Rule: long, Reason: long, Hint: long, Addr: long, Policy: long,
			Proto: long, Verdict: long, Decoy: long, Method: long, Path: long}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, current))
	if err != nil || info.Size() > maxLine {
		t.Fatalf("a line of more than %d bytes, or %v", maxLine, err)
	}
	if evs, err := Read(at(dir), Query{}); err != nil || len(evs) != 1 || !strings.HasPrefix(long, evs[0].Name) {
		t.Errorf("%d events, %v", len(evs), err)
	}
}

// TestJournal_ConcurrentWritersAndFollower uses several descriptors instead of several
// processes, since descriptors are what distinguishes writers.
func TestJournal_ConcurrentWritersAndFollower(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const writers, each = 3, 1000
	pad := strings.Repeat("x", 700)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	enough := errors.New("enough")
	seen := map[string]int{}
	var follower sync.WaitGroup
	follower.Go(func() {
		err := Follow(ctx, at(dir), Query{}, func(ev wire.NetEvent) error {
			if ev.Kind == "" {
				return nil
			}
			if seen[ev.Name]++; len(seen) == writers*each {
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) {
			t.Errorf("the follower saw %d events: %v", len(seen), err)
		}
	})
	var all sync.WaitGroup
	for w := range writers {
		j := opened(t, dir)
		all.Go(func() {
			for i := range each {
				ev := event(w*each + i)
				ev.Reason, ev.Hint = pad, pad
				if err := j.Append(ev); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	follower.Wait()
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s was delivered %d times", name, n)
		}
	}
	evs, err := Read(at(dir), Query{})
	if err != nil || len(evs) != writers*each {
		t.Errorf("%d events are kept, %v", len(evs), err)
	}
	before, err := os.Stat(filepath.Join(dir, previous))
	if err != nil || before.Size() > maxFile || before.Size() < maxFile-maxLine {
		t.Errorf("the file that became full: %v", err)
	}
}

func TestFollow_StartsWithNewest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := opened(t, dir)
	for i := range 3 {
		if err := j.Append(event(i)); err != nil {
			t.Fatal(err)
		}
	}
	// A crash may leave this state between two files.
	if err := os.Rename(filepath.Join(dir, current), filepath.Join(dir, previous)); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	var got []string
	err := Follow(t.Context(), at(dir), Query{Last: 2}, func(ev wire.NetEvent) error {
		switch got = append(got, ev.Name); len(got) {
		case 3:
			return j.Append(event(3))
		case 4:
			return enough
		}
		return nil
	})
	if want := " h1.example h2.example h3.example"; !errors.Is(err, enough) || strings.Join(got, " ") != want {
		t.Errorf("%v, %v; want %s", got, err, want)
	}
}

func TestJournal_RefusesLink(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	j := opened(t, dir)
	if err := os.Symlink(other, filepath.Join(dir, current)); err != nil {
		t.Fatal(err)
	}
	if err := j.Append(event(0)); err == nil {
		t.Error("the journal was written through a link")
	}
	if _, err := Read(at(dir), Query{}); err == nil {
		t.Error("the journal was read through a link")
	}
	if _, err := os.Lstat(other); err == nil {
		t.Error("the target of the link was created")
	}
}

// TestAppend_DetectsReplacedFile checks that a writer notices when its open file no longer has
// the name of the journal.
func TestAppend_DetectsReplacedFile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(file string) error
		want   string // what is read then; "": nothing can be written
	}{
		"nothing":          {os.Remove, "h1.example"},
		"another file":     {func(file string) error { return swap(file, "") }, "h1.example"},
		"one that is torn": {func(file string) error { return swap(file, "{") }, "h1.example"},
		"a link to it": {func(file string) error {
			return errors.Join(os.Rename(file, file+".old"), os.Symlink(file+".old", file))
		}, ""},
		"a link elsewhere": {
			func(file string) error { return errors.Join(os.Remove(file), os.Symlink(file+".new", file)) }, ""},
		"a directory":        {func(file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) }, ""},
		"itself, at its end": {func(file string) error { return os.Truncate(file, 0) }, "h1.example"},
		"a name that changed": {
			func(file string) error { return os.Rename(file, filepath.Join(filepath.Dir(file), previous)) },
			"h0.example h1.example"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			j, file := opened(t, dir), filepath.Join(dir, current)
			if err := j.Append(event(0)); err != nil {
				t.Fatal(err)
			}
			if err := c.change(file); err != nil {
				t.Fatal(err)
			}
			if err := j.Append(event(1)); (err == nil) != (c.want != "") {
				t.Fatal(err)
			}
			if c.want == "" {
				if old, err := os.ReadFile(file + ".old"); err == nil && bytes.Count(old, []byte{'\n'}) > 1 {
					t.Error("the journal was written through a link")
				}
				if err := errors.Join(os.RemoveAll(file), j.Append(event(2))); err != nil {
					t.Errorf("append after the name is free again: %v", err)
				}
				return
			}
			evs, err := Read(at(dir), Query{})
			if got := strings.Join(names(evs), " "); err != nil || got != c.want {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// swap replaces a file by another one.
func swap(file, text string) error {
	return errors.Join(os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file))
}

// TestJournal_EncryptsLines checks that a line cannot be read without the key, and that a changed line, or one of
// another journal, is not accepted as an event. A line of a build without keys is.
func TestJournal_EncryptsLines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := opened(t, dir)
	if err := j.Append(wire.NetEvent{Kind: wire.NetHTTP, Name: "host.example", Path: "/?token=hidden"}); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, current)
	text, err := os.ReadFile(name)
	if err != nil || bytes.Contains(text, []byte("hidden")) || bytes.Contains(text, []byte("host.example")) {
		t.Errorf("the file has %q, %v", text, err)
	}
	for what, place := range map[string]Place{"no key": {Dir: dir},
		"another key": {Dir: dir, Key: make([]byte, secretbox.Size)}} {
		if evs, err := Read(place, Query{}); err != nil || len(evs) > 0 {
			t.Errorf("%s: %v, %v", what, evs, err)
		}
	}
	if _, err := Read(Place{Dir: dir, Key: []byte("short")}, Query{}); err == nil {
		t.Error("a key of the wrong length was accepted")
	}
	altered := bytes.Clone(text)
	altered[len(altered)-10] ^= 1
	clear := "{\"time\":\"2026-01-02T03:04:05Z\",\"kind\":\"deny\",\"name\":\"before\"}\n"
	if err := os.WriteFile(name, append(append(altered, clear...), text...), 0o600); err != nil {
		t.Fatal(err)
	}
	evs, err := Read(at(dir), Query{})
	if got := names(evs); err != nil || !slices.Equal(got, []string{"before", "host.example"}) ||
		evs[1].Path != "/?token=hidden" {
		t.Errorf("%v, %v", evs, err)
	}
}

func BenchmarkAppend(b *testing.B) {
	j, err := Open(at(b.TempDir()))
	if err != nil {
		b.Fatal(err)
	}
	defer j.Close()
	for b.Loop() {
		if err := j.Append(event(1)); err != nil {
			b.Fatal(err)
		}
	}
}

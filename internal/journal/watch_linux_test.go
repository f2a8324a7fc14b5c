package journal

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// following calls follow with a watch that does not poll, and returns the names of events as they arrive. It ends
// with the test.
func following(t *testing.T, w *watch) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	q, err := Query{}.in(at(w.dir))
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan string, 100)
	var follower sync.WaitGroup
	follower.Go(func() {
		defer close(seen)
		err := follow(ctx, w, q, func(ev wire.NetEvent) error {
			seen <- ev.Name
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); follower.Wait(); w.close() })
	return seen
}

func (j *Journal) must(t *testing.T, i int) {
	t.Helper()
	if err := j.Append(event(i)); err != nil {
		t.Fatal(err)
	}
}

// TestFollow_WakesOnEveryEvent checks that a follower that does not poll gets every event,
// also those that arrive when a file becomes full, or while others are delivered.
func TestFollow_WakesOnEveryEvent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := opened(t, dir)
	seen := following(t, newWatch(dir, 24*time.Hour))
	if name := <-seen; name != "" {
		t.Fatalf("%q before anything was appended", name)
	}
	want := func(list ...string) {
		t.Helper()
		for _, name := range list {
			if got := <-seen; got != name {
				t.Fatalf("%q, want %q", got, name)
			}
		}
	}
	j.must(t, 0)
	want("h0.example")
	j.must(t, 1)
	j.must(t, 2)
	j.must(t, 3)
	want("h1.example", "h2.example", "h3.example")
	f, err := os.OpenFile(filepath.Join(dir, current), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(strings.Repeat("x", maxFile-1) + "\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	j.must(t, 4)
	want("h4.example")
	j.must(t, 5)
	want("h5.example")
}

// TestFollow_FindsNewDirectory covers a directory that does not exist yet, or was replaced by another.
func TestFollow_FindsNewDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "later")
	seen := following(t, newWatch(dir, time.Millisecond))
	<-seen
	for i := range 3 {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		j := opened(t, dir)
		j.must(t, i)
		if got, want := <-seen, event(i).Name; got != want {
			t.Fatalf("%q, want %q", got, want)
		}
		if err := os.Rename(dir, filepath.Join(t.TempDir(), "away")); err != nil {
			t.Fatal(err)
		}
	}
}

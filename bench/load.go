//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
)

const (
	loaders  = 64 // concurrent clients
	loadedOn = 8  // sandboxes that they share
	// stalled is the maximum duration of an operation. Beyond it, the daemon hangs.
	stalled = time.Minute
	// loadFile is the file that is read under load, and loadSize its size.
	loadFile = "/var/tmp/loaded"
	loadSize = 64 << 10
	// loadOutput prints 20,000 lines, more than fit into one frame.
	loadOutput = "seq -f 'line %07.0f of what a reader gets whole' 20000"
)

// loader is one client of a load.
type loader struct {
	b     *bench
	c     *client.Client
	web   *http.Client // with the same token
	names []string
	dice  *rand.Rand
	id    int
	n     int                          // operations so far
	want  map[string][sha256.Size]byte // of loadFile and loadOutput
	took  map[string][]time.Duration   // by kind
}

// loadKind is a kind of operation, with its frequency in 150 operations.
type loadKind struct {
	name  string
	times int
	do    func(l *loader, ctx context.Context, name string) error
}

func loadKinds() []loadKind {
	return []loadKind{
		{"list", 20, (*loader).list},
		{"status", 25, (*loader).status},
		{"log", 15, (*loader).log},
		{"head", 30, (*loader).head},
		{"file read", 25, (*loader).read},
		{"exec true", 20, (*loader).exec},
		{"exec that writes", 6, (*loader).change},
		{"exec that prints 0.9 MB", 2, (*loader).output},
		{"the same as events", 2, (*loader).outputEvents},
		{"exec true as events", 5, (*loader).execEvents},
		{"file write", 4, (*loader).write},
		{"events, up to the one it causes", 2, (*loader).events},
		{"fork, exec in it, remove", 1, (*loader).fork},
	}
}

// loads runs 64 clients with mixed operations over TCP, while old snapshots are dropped. It requires that nothing
// fails, hangs or is left behind.
func (b *bench) loads(scale int) error {
	last := b.load
	if scale > 1 {
		last /= 5
	}
	names, want, err := b.loaded()
	if err != nil {
		return err
	}
	all, forget, err := b.newLoaders(names, want)
	if err != nil {
		return err
	}
	// Each client performs each kind once, so that the daemon has allocated its permanent memory.
	kinds := loadKinds()
	if err := b.under(all, func(ctx context.Context, l *loader) error {
		for _, k := range kinds {
			if err := l.once(ctx, k); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	before, err := b.rested(all)
	if err != nil {
		return err
	}
	for _, l := range all {
		clear(l.took)
	}
	began := time.Now()
	deadline := began.Add(last)
	err = b.under(all, func(ctx context.Context, l *loader) error {
		for time.Now().Before(deadline) {
			if err := l.any(ctx, kinds); err != nil {
				return err
			}
		}
		return nil
	})
	whole := time.Since(began)
	if err != nil {
		return err
	}
	after, err := b.rested(all)
	if err != nil {
		return err
	}
	b.addLoads(all, kinds, whole)
	b.add("memory of the daemon after the load", "PSS", after.memory, "", "before", before.memory)
	b.add("open files of the daemon after the load", "", after.files, "", "before", before.files)
	if after.files > before.files+loadedOn {
		return fmt.Errorf("the daemon had %d files open before the load, and has %d after it", before.files, after.files)
	}
	errs := []error{forget()}
	for _, name := range names {
		errs = append(errs, b.c.Remove(b.ctx, name, true))
	}
	return errors.Join(errs...)
}

// loaded creates the sandboxes that are read under load. It returns their names and the expected content.
func (b *bench) loaded() (names []string, want map[string][sha256.Size]byte, err error) {
	want = map[string][sha256.Size]byte{}
	text := bytes.Repeat([]byte("what is read under load\n"), loadSize/24)
	want[loadFile] = sha256.Sum256(text)
	for range loadedOn {
		name, err := b.sandbox(wire.Source{})
		if err != nil {
			return nil, nil, err
		}
		names = append(names, name)
		if _, err := b.c.WriteFile(b.ctx, name, loadFile, bytes.NewReader(text), wire.WriteOptions{}); err != nil {
			return nil, nil, err
		}
		sum := sha256.New()
		req := wire.ExecRequest{Cmd: []string{"sh", "-c", loadOutput}}
		if _, err := b.c.Exec(b.ctx, name, req, client.Streams{Stdout: sum}); err != nil {
			return nil, nil, err
		}
		want[loadOutput] = [sha256.Size]byte(sum.Sum(nil))
	}
	return names, want, nil
}

// newLoaders creates the clients. forget revokes their tokens.
func (b *bench) newLoaders(
	names []string, want map[string][sha256.Size]byte,
) (all []*loader, forget func() error, err error) {
	cs, tokens, forget, err := b.remotes(loaders)
	if err != nil {
		return nil, nil, err
	}
	all = make([]*loader, loaders)
	for i := range all {
		all[i] = &loader{
			b: b, c: cs[i], web: asked((&net.Dialer{}).DialContext, tokens[i]), names: names, id: i, want: want,
			dice: rand.New(rand.NewPCG(1, uint64(i))), // the same in each run
			took: map[string][]time.Duration{},
		}
	}
	return all, forget, nil
}

// addLoads adds a row for each kind, and one for all.
func (b *bench) addLoads(all []*loader, kinds []loadKind, whole time.Duration) {
	var every []time.Duration
	for _, k := range kinds {
		var ds []time.Duration
		for _, l := range all {
			ds = append(ds, l.took[k.name]...)
		}
		every = append(every, ds...)
		if len(ds) > 0 {
			b.add("under load: "+k.name, "", rate{float64(len(ds)) / whole.Seconds(), statOf(ds)}, "", "", stat{})
		}
	}
	how := fmt.Sprintf("clients at once: %d, for %s", loaders, round(whole))
	each := rate{float64(len(every)) / whole.Seconds(), statOf(every)}
	b.add("under load: all of these", how, each, "no error", "", stat{})
}

// under runs do for every loader concurrently, while old snapshots are dropped.
func (b *bench) under(all []*loader, do func(ctx context.Context, l *loader) error) error {
	g, ctx := errgroup.WithContext(b.ctx)
	sweep, done := context.WithCancel(ctx)
	var swept errgroup.Group
	swept.Go(func() error { return b.sweep(sweep) })
	for _, l := range all {
		g.Go(func() error { return do(ctx, l) })
	}
	err := g.Wait()
	done()
	return errors.Join(err, swept.Wait())
}

// sweep drops old snapshots every two seconds.
func (b *bench) sweep(ctx context.Context) error {
	t := time.NewTicker(2 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		// A collection that has begun runs to its end.
		whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), stalled)
		_, err := b.c.GC(whole, wire.GCRequest{Keep: wire.Keep{Last: 20}}, nil)
		cancel()
		if err != nil {
			return fmt.Errorf("gc: %w", err)
		}
	}
}

// resting is the resource usage of the idle daemon.
type resting struct {
	memory kibibytes
	files  openFiles
}

// openFiles is a number of open files.
type openFiles int

func (f openFiles) count() int     { return 1 }
func (f openFiles) value() float64 { return float64(f) }
func (f openFiles) String() string { return fmt.Sprint(int(f)) }

func (b *bench) rested(all []*loader) (resting, error) {
	for _, l := range all {
		l.c.Close()
		l.web.CloseIdleConnections()
	}
	memory, err := quiet(b.daemon)
	if err != nil {
		return resting{}, err
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", b.daemon))
	return resting{memory, openFiles(len(open))}, err
}

// any performs a random operation.
func (l *loader) any(ctx context.Context, kinds []loadKind) error {
	sum := 0
	for _, k := range kinds {
		sum += k.times
	}
	at := l.dice.IntN(sum)
	for _, k := range kinds {
		if at -= k.times; at < 0 {
			return l.once(ctx, k)
		}
	}
	return nil
}

func (l *loader) once(ctx context.Context, k loadKind) error {
	l.n++
	ctx, cancel := context.WithTimeout(ctx, stalled)
	defer cancel()
	t := time.Now()
	name := l.names[l.dice.IntN(len(l.names))]
	if err := k.do(l, ctx, name); err != nil {
		return fmt.Errorf("%s, %s: %w", k.name, name, err)
	}
	l.took[k.name] = append(l.took[k.name], time.Since(t))
	return nil
}

func (l *loader) list(ctx context.Context, name string) error {
	all, err := l.c.List(ctx)
	if err != nil {
		return err
	}
	for _, s := range all {
		if s.Name == name {
			return nil
		}
	}
	return fmt.Errorf("it is not among %d sandboxes", len(all))
}

func (l *loader) status(ctx context.Context, name string) error {
	s, err := l.c.Status(ctx, name)
	if err == nil && s.Sandbox.Name != name {
		err = fmt.Errorf("it is called %q", s.Sandbox.Name)
	}
	return err
}

func (l *loader) log(ctx context.Context, name string) error {
	r, err := l.c.Log(ctx, name)
	if err != nil {
		return err
	}
	for _, n := range r.Nodes {
		if n.ID == r.Head {
			return nil
		}
	}
	return fmt.Errorf("HEAD, %q, is not among %d snapshots", r.Head, len(r.Nodes))
}

func (l *loader) head(ctx context.Context, name string) error {
	h, err := l.c.Head(ctx, name)
	if err == nil && h.Head == "" {
		err = errors.New("there is none")
	}
	return err
}

func (l *loader) read(ctx context.Context, name string) error {
	r, err := l.c.ReadFile(ctx, name, loadFile, client.FileOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	sum := sha256.New()
	if n, err := io.Copy(sum, r); err != nil {
		return err
	} else if [sha256.Size]byte(sum.Sum(nil)) != l.want[loadFile] {
		return fmt.Errorf("what came, %d bytes, is something else", n)
	}
	return nil
}

func (l *loader) exec(ctx context.Context, name string) error { return execTrue(ctx, l.c, name) }

// own returns the path of a file that no other loader writes.
func (l *loader) own() string { return fmt.Sprintf("/var/tmp/of-%d", l.id) }

func (l *loader) change(ctx context.Context, name string) error {
	var out strings.Builder
	req := wire.ExecRequest{Cmd: []string{"sh", "-c", fmt.Sprintf("echo %d >%s; cat %[2]s", l.n, l.own())}}
	x, err := l.c.Exec(ctx, name, req, client.Streams{Stdout: &out, Stderr: &out})
	if err == nil && (x.Code != 0 || out.String() != fmt.Sprintln(l.n) || x.Snapshot == "") {
		err = fmt.Errorf("it printed %q, and ended with %+v", out.String(), x)
	}
	return err
}

func (l *loader) output(ctx context.Context, name string) error {
	sum := sha256.New()
	x, err := l.c.Exec(ctx, name, wire.ExecRequest{Cmd: []string{"sh", "-c", loadOutput}}, client.Streams{Stdout: sum})
	if err == nil && (x.Code != 0 || [sha256.Size]byte(sum.Sum(nil)) != l.want[loadOutput]) {
		err = fmt.Errorf("what came is something else; it ended with %+v", x)
	}
	return err
}

func (l *loader) execEvents(ctx context.Context, name string) error {
	return execEvents(ctx, l.web, l.b.tcp, name, io.Discard, "true")
}

func (l *loader) outputEvents(ctx context.Context, name string) error {
	sum := sha256.New()
	err := execEvents(ctx, l.web, l.b.tcp, name, sum, "sh", "-c", loadOutput)
	if err == nil && [sha256.Size]byte(sum.Sum(nil)) != l.want[loadOutput] {
		err = errors.New("what came is something else")
	}
	return err
}

func (l *loader) write(ctx context.Context, name string) error {
	text := fmt.Sprintf("%d by %d\n", l.n, l.id)
	if _, err := l.c.WriteFile(ctx, name, l.own(), strings.NewReader(text), wire.WriteOptions{}); err != nil {
		return err
	}
	r, err := l.c.ReadFile(ctx, name, l.own(), client.FileOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if err == nil && string(got) != text {
		err = fmt.Errorf("%q was written, and is %q", text, got)
	}
	return err
}

// events listens until it has received the event of its own command.
func (l *loader) events(ctx context.Context, name string) error {
	heard := errors.New("it was heard of")
	label := fmt.Sprintf("heard-%d-%d", l.id, l.n)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		// Starting at all stored events makes the order of the two irrelevant.
		err := l.c.Events(ctx, name, 0, func(ev wire.SandboxEvent) error {
			if ev.Kind == wire.EventExited && ev.Message == label {
				return heard
			}
			return nil
		})
		if errors.Is(err, heard) {
			return nil
		}
		return fmt.Errorf("listen: %w", err)
	})
	g.Go(func() error {
		x, err := l.c.Exec(ctx, name, wire.ExecRequest{Cmd: []string{"true"}, Label: label}, client.Streams{})
		if err == nil && x.Code != 0 {
			err = fmt.Errorf("exit code %d", x.Code)
		}
		return err
	})
	return g.Wait()
}

func (l *loader) fork(ctx context.Context, name string) error {
	r, err := l.c.Fork(ctx, name, wire.ForkRequest{N: 1})
	if err != nil {
		return err
	}
	fork := r.Sandboxes[0].Name
	var out strings.Builder
	req := wire.ExecRequest{Cmd: []string{"head", "-c", "24", filepath.Clean(loadFile)}}
	x, err := l.c.Exec(ctx, fork, req, client.Streams{Stdout: &out})
	if err == nil && (x.Code != 0 || out.String() != "what is read under load\n") {
		err = fmt.Errorf("it printed %q, and ended with %+v", out.String(), x)
	}
	return errors.Join(err, l.c.Remove(ctx, fork, true))
}

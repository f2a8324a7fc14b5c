//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/memory"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// gvisor measures the cost of a sandbox's own kernel, compared with tier process and with plain processes.
func (b *bench) gvisor(scale int) error {
	for _, step := range []func(int) error{b.gvisorStart, b.gvisorWork, b.gvisorIdle} {
		if err := step(scale); err != nil {
			return err
		}
	}
	return nil
}

// images measures what only such a kernel supports: saving memory, resuming it, and forking it.
func (b *bench) images(scale int) error {
	for _, mb := range []int{5, 50, 500} {
		if err := b.gvisorMemory(mb, max(2, 10/scale)); err != nil {
			return fmt.Errorf("%d MB: %w", mb, err)
		}
	}
	return nil
}

// tiered creates a sandbox of a tier.
func (b *bench) tiered(tier string) (string, error) {
	b.seq++
	name := fmt.Sprintf("bench-%d", b.seq)
	_, err := b.c.Create(b.ctx, wire.CreateRequest{Name: name, Tier: tier}, nil)
	return name, err
}

// gvisorStart measures starts and commands over the API.
func (b *bench) gvisorStart(scale int) error {
	starts := map[string]stat{}
	execs := map[string]stat{}
	for _, tier := range []string{plan.TierGvisor, plan.TierProcess} {
		var ds []time.Duration
		for range max(3, 30/scale) {
			t := time.Now()
			name, err := b.tiered(tier)
			if err == nil {
				err = b.exec(name, "true")
			}
			if err != nil {
				return err
			}
			ds = append(ds, time.Since(t))
			if err := b.c.Remove(b.ctx, name, true); err != nil {
				return err
			}
		}
		starts[tier] = statOf(ds)
		name, err := b.tiered(tier)
		if err != nil {
			return err
		}
		if execs[tier], err = times(200/scale, func(int) error { return b.exec(name, "true") }); err != nil {
			return err
		}
		if err := b.c.Remove(b.ctx, name, true); err != nil {
			return err
		}
	}
	plain, err := times(200/scale, func(int) error { return b.host("true") })
	if err != nil {
		return err
	}
	alone, err := b.gvisorAlone(max(3, 30/scale), 200/scale)
	if err != nil {
		return err
	}
	b.add("gvisor: create a sandbox and run true, over the API", "", starts[plan.TierGvisor], "100 ms", "tier process",
		starts[plan.TierProcess])
	b.add("gvisor: the same", "", starts[plan.TierGvisor], "", "gVisor alone", statOf(alone.Starts))
	b.add("gvisor: exec true in a live sandbox, over the API", "", execs[plan.TierGvisor], "5 ms", "tier process",
		execs[plan.TierProcess])
	b.add("gvisor: the same", "", execs[plan.TierGvisor], "", "gVisor alone", statOf(alone.Execs))
	b.add("gvisor: the same", "", execs[plan.TierGvisor], "", "fork+exec", plain)
	return nil
}

// gvisorWork measures a build and git in each tier and on the host.
func (b *bench) gvisorWork(scale int) error {
	const dir = "/var/tmp/coppice-bench-work"
	prepare := `rm -rf ` + dir + ` && mkdir ` + dir + ` && cd ` + dir + ` && for i in $(seq 30); do echo "int f$i(int x) { return x + $i; }" > f$i.c; done &&
		printf 'all: $(patsubst %%.c,%%.o,$(wildcard f*.c))\n%%.o: %%.c\n\tgcc -O2 -c -o $@ $<\n' > Makefile &&
		mkdir r && cd r && git init -q && for i in $(seq 100); do mkdir d$i; for j in $(seq 50); do echo $i $j > d$i/f$j; done; done && git add . && git -c user.name=b -c user.email=b@b commit -qm all`
	work := []struct{ what, script string }{
		{"make -j2 of 30 C files", "cd " + dir + " && rm -f *.o && make -s -j2"},
		{"git status of 5,000 files", "cd " + dir + "/r && git status --porcelain"},
		{"a loop of 300 processes", "for i in $(seq 300); do /bin/true; done"},
	}
	n := max(2, 10/scale)
	found := map[string][]stat{}
	for _, tier := range []string{plan.TierGvisor, plan.TierProcess, ""} {
		run := func(script string) error { return b.host("sh", "-c", script) }
		name := ""
		if tier != "" {
			var err error
			if name, err = b.tiered(tier); err != nil {
				return err
			}
			run = func(script string) error { return b.exec(name, "sh", "-c", script) }
		}
		if err := run(prepare); err != nil {
			return err
		}
		for _, w := range work {
			s, err := times(n, func(int) error { return run(w.script) })
			if err != nil {
				return err
			}
			found[tier] = append(found[tier], s)
		}
		if name != "" {
			if err := b.c.Remove(b.ctx, name, true); err != nil {
				return err
			}
		}
	}
	for i, w := range work {
		b.add("gvisor: "+w.what, "", found[plan.TierGvisor][i], "", "tier process", found[plan.TierProcess][i])
		b.add("gvisor: "+w.what, "", found[plan.TierGvisor][i], "", "plain", found[""][i])
	}
	return b.host("rm", "-rf", dir)
}

// gvisorIdle measures the memory of an idle sandbox.
func (b *bench) gvisorIdle(int) error {
	found := map[string]kibibytes{}
	for _, tier := range []string{plan.TierGvisor, plan.TierProcess} {
		name, err := b.tiered(tier)
		if err == nil {
			err = b.exec(name, "true")
		}
		if err != nil {
			return err
		}
		time.Sleep(time.Second) // measure the idle state
		if found[tier], err = pss(b.daemon, false); err != nil {
			return err
		}
		if err := b.c.Remove(b.ctx, name, true); err != nil {
			return err
		}
	}
	b.add("gvisor: memory of an idle live sandbox", "PSS of all its processes", found[plan.TierGvisor], "", "tier process",
		found[plan.TierProcess])
	return nil
}

// state is a program that allocates %d MB and answers requests.
const state = `
import os, sys
data = bytearray(os.urandom(%d << 20))
print("ready", flush=True)
for line in sys.stdin: print("answer", len(data), line, flush=True)
`

// gvisorMemory measures images of a program that allocates mb megabytes.
func (b *bench) gvisorMemory(mb, n int) (err error) {
	dir := filepath.Join(b.dir, fmt.Sprint("gvisor-", mb))
	x, end, err := b.gvisorBox(filepath.Join(dir, "parent"), func(*plan.Config) {})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	code := fmt.Sprintf(state, mb)
	s, err := x.Exec(b.ctx,
		wire.ExecRequest{ID: "program", Cmd: []string{"/usr/bin/python3", "-c", code}, Stdin: true, Keep: true})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := heard(s, "ready"); err != nil {
		return err
	}
	store, err := memory.Open(b.ctx, filepath.Join(dir, "store"), memory.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	var pauses []time.Duration
	var images []memory.Image
	for i := range n {
		at := filepath.Join(dir, fmt.Sprint("image", i))
		if err := os.MkdirAll(at, 0o700); err != nil {
			return err
		}
		t := time.Now()
		f, err := x.Freeze(b.ctx)
		if err == nil {
			err = b.save(f, at)
		}
		if err == nil {
			err = f.Thaw()
		}
		if err != nil {
			return err
		}
		pauses = append(pauses, time.Since(t))
		m, err := store.Add(b.ctx, at, nil, memory.Programs{})
		if err != nil {
			return err
		}
		images = append(images, m)
	}
	what := fmt.Sprintf("gvisor: a program with %d MB", mb)
	budget := func(s string) string {
		if mb == 500 {
			return s
		}
		return ""
	}
	b.add(what+": pause of a checkpoint", "", statOf(pauses), budget("400 ms"), "", stat{})
	b.add(what+": bytes of the first image", "", kibibytes(images[0].AddedBytes>>10), "", "", stat{})
	b.add(what+": bytes that the second adds", "", kibibytes(images[1].AddedBytes>>10), budget("2 MB"), "the first",
		kibibytes(images[0].AddedBytes>>10))

	plain, err := times(n, func(int) error {
		cmd := exec.CommandContext(b.ctx, "/usr/bin/python3", "-c", code)
		cmd.Stdin = strings.NewReader("line\n")
		return cmd.Run()
	})
	if err != nil {
		return err
	}
	one, err := b.gvisorForks(store, images[0].ID, filepath.Join(dir, "one"), 1, n)
	if err != nil {
		return err
	}
	b.add(what+": from its image to the first answer", "", one, budget("250 ms"), "built plain, from nothing", plain)
	eight, err := b.gvisorForks(store, images[0].ID, filepath.Join(dir, "eight"), 8, max(2, n/3))
	if err != nil {
		return err
	}
	b.add(what+": eight forks, each to its first answer", "", eight, "", "one", one)
	return nil
}

// gvisorForks times copies of an image, from the request to the answer of the last one. They end before the next
// ones begin.
func (b *bench) gvisorForks(store *memory.Store, id memory.ID, dir string, copies, n int) (stat, error) {
	var ds []time.Duration
	for i := range n {
		t := time.Now()
		image, release, err := store.Checkout(b.ctx, id)
		if err != nil {
			return stat{}, err
		}
		var all errgroup.Group
		ends := make([]func() error, copies)
		for k := range copies {
			all.Go(func() (err error) {
				ends[k], err = b.gvisorCopy(filepath.Join(dir, fmt.Sprint(i, "-", k)), image)
				return err
			})
		}
		err = all.Wait()
		ds = append(ds, time.Since(t))
		for _, end := range ends {
			if end != nil {
				err = errors.Join(err, end())
			}
		}
		release()
		if err != nil {
			return stat{}, err
		}
	}
	return statOf(ds), nil
}

// gvisorCopy resumes an image, and returns when its program has answered. end stops it.
func (b *bench) gvisorCopy(dir, image string) (end func() error, err error) {
	x, end, err := b.gvisorBox(dir, func(c *plan.Config) { c.Image = image })
	if err != nil {
		return nil, err
	}
	if err := x.Release(b.ctx); err != nil {
		return end, err
	}
	s, err := x.Reattach(b.ctx, "program", 0)
	if err != nil {
		return end, err
	}
	defer s.Close()
	if err := wire.WriteFrame(s, wire.FrameStdin, []byte("line\n")); err != nil {
		return end, err
	}
	return end, heard(s, "answer")
}

// heard reads a command's output up to a word.
func heard(s *box.Session, word string) error {
	var all []byte
	for !strings.Contains(string(all), word) {
		t, p, err := wire.ReadFrame(s, nil)
		switch {
		case err != nil:
			return err
		case t == wire.FrameStdout, t == wire.FrameStderr:
			all = append(all, p...)
		case t == wire.FrameFailed, t == wire.FrameExit:
			return fmt.Errorf("after %q: %s", all, p)
		}
	}
	return nil
}

// gvisorBox starts a box of tier gvisor on the host's system directories, without a daemon, after change.
func (b *bench) gvisorBox(dir string, change func(*plan.Config)) (*box.Box, func() error, error) {
	c := plan.Config{ID: "bench", Name: "bench", Tier: plan.TierGvisor, RunDir: filepath.Join(dir, "run"),
		Journal: filepath.Join(dir, "journal"),
		Caller:  plan.Caller{Root: true}, User: plan.UserRoot, IdleAfter: -1}
	d, err := policy.Parse("bench.yaml", []byte("version: 1\nnetwork:\n  allow: []\n"))
	if err != nil {
		return nil, nil, err
	}
	p, err := policy.Merge(policy.Layer{Level: policy.Flags, Document: d})
	if err != nil {
		return nil, nil, err
	}
	text, err := p.Canonical()
	if err != nil {
		return nil, nil, err
	}
	c.Phases = []plan.Phase{{Policy: string(text), Digest: policy.DigestOf(text)}}
	if err := errors.Join(os.MkdirAll(c.RunDir, 0o700), os.MkdirAll(c.Journal, 0o700)); err != nil {
		return nil, nil, err
	}
	if c.Spec, err = systemRoot(dir); err != nil {
		return nil, nil, err
	}
	change(&c)
	x, _, err := box.Start(b.ctx, b.helpers, c)
	if err != nil {
		return nil, nil, err
	}
	return x, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), time.Minute)
		defer cancel()
		return errors.Join(x.Stop(ctx, 0), x.Close())
	}, nil
}

// save writes a memory image of a frozen box.
func (b *bench) save(f *box.Frozen, dir string) error {
	facts, err := box.MemoryFacts(b.helpers)
	if err != nil {
		return err
	}
	init, client, err := f.Save(b.ctx, dir, facts)
	return errors.Join(err, memory.Programs{Init: init, Client: client}.Close())
}

// systemRoot returns a root with the host's system directories, whose changes are in dir.
func systemRoot(dir string) (s rootspec.Spec, err error) {
	for _, top := range []string{"/usr", "/etc", "/root"} {
		o := rootspec.Overlay{Target: top, Lowers: []string{top}, Upper: dir + top + "/upper", Work: dir + top + "/work"}
		err = errors.Join(err, os.MkdirAll(o.Upper, 0o755), os.MkdirAll(o.Work, 0o755))
		s.Overlays = append(s.Overlays, o)
	}
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		if to, err := os.Readlink("/" + l); err == nil {
			s.Skeleton = append(s.Skeleton, rootspec.Entry{Path: "/" + l, Link: to})
		}
	}
	return s, err
}

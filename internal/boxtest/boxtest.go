//go:build linux && (amd64 || arm64)

// Package boxtest is the conformance suite of a box: a table of tests that every tier must pass. Only tests import it.
package boxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

// Tier creates boxes of one tier for the suite.
type Tier struct {
	Name string // one of plan's tiers
	// Config returns a configuration with a fresh root and run directory, which are removed when the test
	// ends. The root has /bin/sh and coreutils.
	Config func(t testing.TB) plan.Config
	// Differing runs, with -short, only the rows that depend on what makes the namespaces of the box: for a tier in which
	// everything else is that of another.
	Differing bool
}

// Run runs the suite.
func Run(t *testing.T, tier Tier) {
	rows := slices.Concat(lifetimes, freezes, pauses, insides, confined, refusals)
	if !tier.Differing || !testing.Short() {
		rows = slices.Concat(rows, common, terminals, started, kept, traces, programs, looks, ports, selves, accesses,
			limited, decoys, decoyCalls, denied)
	}
	for _, c := range rows {
		if len(c.only) == 0 || slices.Contains(c.only, tier.Name) {
			c.start(t, tier)
		}
	}
}

// RunPorts runs the rows about ports for a variant of tier workspace whose ports are not those of the host.
func RunPorts(t *testing.T, tier Tier) {
	for _, c := range ports {
		if !slices.Equal(c.only, hosts) {
			c.start(t, tier)
		}
	}
}

func (c check) start(t *testing.T, tier Tier) {
	t.Run(c.name, func(t *testing.T) {
		t.Parallel()
		c.run(t, tier)
	})
}

// patience is how long a test waits before it reports a hang. It is longer than the slowest machine needs, and shorter
// than the interrupted operation would take.
const patience = 5 * time.Minute

// check is one row of the suite.
type check struct {
	name string
	only []string // tiers; empty for all
	run  func(t *testing.T, tier Tier)
}

// Phase returns a phase with the policy in text, as of a sandbox's owner, until a time. A zero time means no end.
func Phase(t testing.TB, until time.Time, text string) plan.Phase {
	t.Helper()
	d, err := policy.Parse("/test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Merge(policy.Layer{Level: policy.Flags, Document: d})
	if err != nil {
		t.Fatal(err)
	}
	canonical, err := p.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	return plan.Phase{Policy: string(canonical), Digest: policy.DigestOf(canonical), Until: until}
}

// Start starts a box and stops it when the test ends.
func (tier Tier) Start(t testing.TB, change ...func(*plan.Config)) *Box {
	t.Helper()
	c := tier.Config(t)
	for _, f := range change {
		f(&c)
	}
	b, err := start(t, c)
	if err != nil {
		log, _ := os.ReadFile(c.RunDir + "/keeper.log")
		t.Fatalf("start: %v\nkeeper.log: %s", err, log)
	}
	return b
}

// start starts a box and, if that succeeds, stops it when the test ends.
func start(t testing.TB, c plan.Config) (*Box, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b, e, err := box.Start(ctx, programtest.Programs(), c)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := b.Stop(ctx, 0); err != nil {
			t.Errorf("stop: %v", err)
		}
		b.Close()
		if log, err := os.ReadFile(c.RunDir + "/keeper.log"); err == nil && len(log) > 0 {
			t.Logf("keeper.log: %s", log)
			if bytes.Contains(log, []byte("DATA RACE")) {
				t.Error("the keeper has a data race")
			}
		}
	})
	return &Box{Box: b, Enforced: e, Config: c}, nil
}

// Box is a started box.
type Box struct {
	*box.Box
	Enforced plan.Enforced
	Config   plan.Config
}

// Result is the result of an exec.
type Result struct {
	Started        wire.Started
	Stdout, Stderr string
	Exit           box.Exit
	Failed         *wire.Error
	Dropped        int64
	Err            error // the stream ended without a final frame
}

// Collect reads a stream to its end.
func Collect(s io.Reader) (r Result) {
	var out, errs bytes.Buffer
	defer func() { r.Stdout, r.Stderr = out.String(), errs.String() }()
	for {
		t, p, err := wire.ReadFrame(s, nil)
		if err != nil {
			r.Err = err
			return r
		}
		switch t {
		case wire.FrameStarted:
			r.Err = json.Unmarshal(p, &r.Started)
		case wire.FrameStdout:
			out.Write(p)
		case wire.FrameStderr:
			errs.Write(p)
		case wire.FrameDropped:
			var d wire.Dropped
			r.Err = json.Unmarshal(p, &d)
			r.Dropped += d.Bytes
		case wire.FrameExit:
			r.Err = json.Unmarshal(p, &r.Exit)
			return r
		case wire.FrameFailed:
			r.Failed = new(wire.Error)
			r.Err = json.Unmarshal(p, r.Failed)
			return r
		}
		if r.Err != nil {
			return r
		}
	}
}

// Open starts an exec. The stream is closed when the test ends.
func (b *Box) Open(t testing.TB, req wire.ExecRequest) *box.Session {
	t.Helper()
	s, err := b.Exec(context.Background(), req)
	if err != nil {
		t.Fatalf("exec %q: %v", req.Cmd, err)
	}
	_ = s.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { s.Close() })
	return s
}

// Do runs a request and returns its result.
func (b *Box) Do(t testing.TB, req wire.ExecRequest) Result {
	t.Helper()
	s := b.Open(t, req)
	defer s.Close()
	r := Collect(s)
	if r.Err != nil {
		t.Fatalf("exec %q: %v", req.Cmd, r.Err)
	}
	return r
}

// Sh runs a script and returns its result.
func (b *Box) Sh(t testing.TB, script string) Result {
	t.Helper()
	return b.Do(t, wire.ExecRequest{Cmd: []string{"sh", "-c", script}})
}

// WaitStarted reads up to the Started frame and returns it.
func WaitStarted(t testing.TB, s io.Reader) wire.Started {
	t.Helper()
	k, p, err := wire.ReadFrame(s, nil)
	if err != nil || k != wire.FrameStarted {
		t.Fatalf("frame %d %q, %v: want started", k, p, err)
	}
	var st wire.Started
	if err := json.Unmarshal(p, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// WaitOutput reads output until it contains want, and returns the output.
func WaitOutput(t testing.TB, s io.Reader, want string) string {
	t.Helper()
	var all []byte
	for !bytes.Contains(all, []byte(want)) {
		k, p, err := wire.ReadFrame(s, nil)
		if err != nil {
			t.Fatalf("after %q: %v: want %q", all, err, want)
		}
		if k == wire.FrameExit || k == wire.FrameFailed {
			t.Fatalf("after %q: %s: want %q", all, p, want)
		}
		if k == wire.FrameStdout || k == wire.FrameStderr {
			all = append(all, p...)
		}
	}
	return string(all)
}

// Send writes one frame.
func Send(t testing.TB, s io.Writer, k wire.FrameType, v any) {
	t.Helper()
	var err error
	if b, ok := v.([]byte); ok {
		err = wire.WriteFrame(s, k, b)
	} else {
		err = wire.WriteJSON(s, k, v)
	}
	if err != nil {
		t.Fatalf("send frame %d: %v", k, err)
	}
}

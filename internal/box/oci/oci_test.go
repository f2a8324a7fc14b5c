//go:build linux && (amd64 || arm64)

package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

var update = flag.Bool("update", false, "write testdata/config.json")

// TestSpec_IsThatOfTheBundle compares config.json, the input of a runtime, with a golden file.
func TestSpec_IsThatOfTheBundle(t *testing.T) {
	t.Parallel()
	b, err := json.MarshalIndent(specOf(plan.Guest{Netlink: true, Tell: true}, true), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	var s specs.Spec
	if err := dec.Decode(&s); err != nil {
		t.Errorf("not a config.json: %v", err)
	}
	if !s.Process.NoNewPrivileges || len(s.Linux.Namespaces) != 4 || s.Linux.Seccomp == nil {
		t.Errorf("%s", b)
	}
	if runtime.GOARCH != "amd64" {
		return // the calls of the profile differ
	}
	golden := filepath.Join("testdata", "config.json")
	if *update {
		if err := os.WriteFile(golden, append(b, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || string(want) != string(b)+"\n" {
		t.Errorf("%v: the bundle differs from %s: see what changed with -update and git diff", err, golden)
	}
}

// TestInitCaps_IncludeThoseOfCommands checks that init has what root's commands keep.
func TestInitCaps_IncludeThoseOfCommands(t *testing.T) {
	t.Parallel()
	have := map[uint]bool{}
	for _, c := range initCaps {
		have[c.number] = true
	}
	for _, c := range plan.RootCaps {
		if !have[c] {
			t.Errorf("init lacks capability %d", c)
		}
	}
}

// TestStart_BrokenRuntimes starts containers with runtimes that do not start any.
func TestStart_BrokenRuntimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, script, want string
		kind               fault.Kind
	}{
		{"dies", "echo no luck >&2; exit 3", "exit status 3: it says: no luck", fault.Unsupported},
		{"is killed", "kill -9 $$", "signal: killed", fault.Unsupported},
		{"starts nothing", "exit 0", "PID 1 of the container does not run", fault.Unsupported},
		{"prints garbage", "head -c 200000 /dev/zero | tr '\\0' '\\033'; exit 1", "it says: ??", fault.Unsupported},
		{"hangs", "exec sleep 1000", "has not started the container within", fault.Timeout},
		{"hangs with children", "sleep 1000 & wait", "has not started the container within", fault.Timeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			program := filepath.Join(dir, "runtime")
			if err := os.WriteFile(program, []byte("#!/bin/sh\n"+c.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			err := startIn(t, container{name: "runtime", program: program, state: dir, patience: 2 * time.Second})
			if !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) || fault.HintOf(err) == "" {
				t.Errorf("%v", err)
			}
			if strings.ContainsRune(err.Error(), '\033') || len(err.Error()) > 2*maxSaid {
				t.Errorf("it quotes %q", err)
			}
		})
	}
	dir := t.TempDir()
	if err := startIn(t, container{name: "gone", program: filepath.Join(dir, "gone"), state: dir,
		patience: time.Second}); !fault.Is(err, fault.Unsupported) {
		t.Errorf("missing: %v", err)
	}
}

// startIn starts a container whose PID 1 never answers.
func startIn(t *testing.T, c container) error {
	t.Helper()
	log, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c.log = log
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	link, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	begin := func() answer { // as the link: it ends when no process has the other end
		_, err := r.Read(make([]byte, 1))
		return answer{err: errors.Join(err, os.ErrClosed)}
	}
	return c.start(context.Background(), specOf(plan.Guest{}, false), link, w, begin)
}

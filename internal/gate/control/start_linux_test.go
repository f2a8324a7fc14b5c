//go:build linux && (amd64 || arm64)

package control

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/program"
)

// TestMain also runs a compromised gate that does not follow the protocol.
func TestMain(m *testing.M) {
	if os.Args[0] != Argv0 {
		os.Exit(m.Run())
	}
	conn := os.NewFile(ConnFD, "keeper")
	var one [1]byte
	if _, err := conn.Read(one[:]); err != nil {
		os.Exit(1)
	}
	switch os.Args[1] {
	case "mute":
		var q Request
		for in := json.NewDecoder(conn); in.Decode(&q) == nil; {
		}
		select {} // it does not exit with its keeper either
	case "endless":
		for _, err := conn.WriteString(`{"ca":"`); err == nil; {
			_, err = conn.Write(bytes.Repeat([]byte("A"), 1<<16))
		}
	case "rubbish":
		conn.WriteString("{\n]")
		select {}
	}
	os.Exit(0)
}

// self opens the test binary.
func self(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open("/proc/self/exe")
	if err == nil {
		f, err = program.Executable(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestBegin_EndsUnresponsiveGate checks that a gate that does not reply, or replies wrongly, is killed: no caller waits
// for it, and no connection passes.
func TestBegin_EndsUnresponsiveGate(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"mute", "endless", "rubbish"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p, err := Start(self(t), what, t.TempDir(), nil, os.Stderr)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			p.patience = time.Second
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			if _, err := p.Begin(r, nil, Decoys{}); !fault.Is(err, fault.Unavailable) {
				t.Errorf("%v", err)
			}
			<-p.Gone()
			if _, err := p.Now(); !fault.Is(err, fault.Unavailable) {
				t.Errorf("%v", err)
			}
		})
	}
}

//go:build linux && (amd64 || arm64)

package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/program"
	"github.com/coppice-dev/coppice/internal/thread"
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
	case "state":
		var q Request
		if err := json.NewDecoder(conn).Decode(&q); err != nil {
			os.Exit(1)
		}
		state, err := os.ReadFile("/proc/self/status")
		if err != nil || json.NewEncoder(conn).Encode(Reply{CA: state}) != nil {
			os.Exit(1)
		}
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

// asUser is set for a copy of this test that runs as an ordinary user.
const asUser = "COPPICE_TEST_AS_USER"

// TestStart_AsOrdinaryUser starts a gate as a user without capabilities, outside of a user namespace, who may not change
// the capability bounding set: a pod's. Root runs the test by such a user.
func TestStart_AsOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() == 0 && os.Getenv(asUser) == "" {
		exe := self(t)
		cmd := exec.Command(program.Path(exe), "-test.run=^TestStart_AsOrdinaryUser$", "-test.v")
		cmd.Dir, cmd.Env = "/", append(os.Environ(), asUser+"=1", "TMPDIR=/tmp")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1001, Gid: 1001}}
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if none, err := hasNoCaps(); err != nil || !none {
		t.Fatalf("the user has capabilities: %v", err)
	}
	p, err := Start(self(t), "state", t.TempDir(), nil, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	ca, err := p.Begin(r, nil, Decoys{}, Secrets{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CapInh:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapAmb:\t0000000000000000\n",
		"NoNewPrivs:\t1\n"} {
		if !bytes.Contains(ca, []byte(want)) {
			t.Errorf("the status of the gate has no %q:\n%s", want, ca)
		}
	}
}

// TestRenounce_RequiresSetpcapOfOthers covers a thread that has capabilities, but not that to give them up for good.
func TestRenounce_RequiresSetpcapOfOthers(t *testing.T) {
	t.Parallel()
	if none, err := hasNoCaps(); err != nil || none {
		t.Skip("needs capabilities: this user has none to keep")
	}
	thread.OnOwn(func() {
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		only := [2]unix.CapUserData{{Permitted: 1 << unix.CAP_KILL}}
		if _, _, e := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&only[0])),
			0); e != 0 {
			t.Error(e)
			return
		}
		if err := renounce(); !errors.Is(err, unix.EPERM) {
			t.Errorf("%v", err)
		}
	})
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
			if _, err := p.Begin(r, nil, Decoys{}, Secrets{}); !fault.Is(err, fault.Unavailable) {
				t.Errorf("%v", err)
			}
			<-p.Gone()
			if _, err := p.Now(); !fault.Is(err, fault.Unavailable) {
				t.Errorf("%v", err)
			}
		})
	}
}

package broker

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/program/programtest"
	"github.com/coppice-dev/coppice/internal/secret/client"
	"github.com/coppice-dev/coppice/internal/secret/line"
)

// patience bounds every wait.
const patience = 2 * time.Minute

// a token of GitHub's form; none is anyone's.
const token = "ghp_" + "q2Wk8YxNcPzT5vLbRj7HsDfGmEa3U0" + "1iZbXK"

// testHome is a home with a real broker.
type testHome struct {
	*client.Client
	t    *testing.T
	dir  string // the home
	user string // HOME of its owner
	idle time.Duration
}

// start starts a broker with a home of its own, which ends with the test.
func start(t *testing.T) *testHome {
	t.Helper()
	h := &testHome{t: t, dir: filepath.Join(t.TempDir(), "home"), user: t.TempDir(), idle: time.Hour}
	h.Client = client.Dial(h.dir).With(os.Environ())
	h.again()
	t.Cleanup(func() { h.end(unix.SIGTERM) })
	return h
}

// again starts a broker unless one runs.
func (h *testHome) again() client.Status {
	h.t.Helper()
	if err := client.Start(h.t.Context(), h.options()); err != nil {
		h.t.Fatalf("%v (%s)", err, fault.HintOf(err))
	}
	s, err := h.Status(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (h *testHome) options() client.Options {
	env := []string{"HOME=" + h.user, "PATH=" + os.Getenv("PATH")}
	return client.Options{Home: h.dir, Programs: programtest.Programs(), Env: env, Idle: h.idle}
}

// end ends the broker, if one runs, and waits until it is gone. It is a child of this process.
func (h *testHome) end(signal syscall.Signal) {
	h.t.Helper()
	s, err := h.Status(context.Background())
	if err != nil {
		return
	}
	if err := unix.Kill(s.PID, signal); err != nil {
		h.t.Error(err)
	}
	h.awaitExit(s.PID)
	log, err := os.ReadFile(client.LogPath(h.dir))
	if err != nil || h.t.Failed() || bytes.Contains(log, []byte("DATA RACE")) || bytes.Contains(log, []byte("panic")) {
		h.t.Errorf("log of the broker: %s, %v", log, err)
	}
}

// awaitExit waits for the exit of a broker.
func (h *testHome) awaitExit(pid int) {
	h.t.Helper()
	await(h.t, "the exit of the broker", func() bool {
		got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		return got == pid || err == unix.ECHILD
	})
}

// await waits for a condition.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// set stores a value.
func (h *testHome) set(name, value string) client.Secret {
	h.t.Helper()
	s, err := h.Set(h.t.Context(), name, "", "", []byte(value))
	if err != nil {
		h.t.Fatalf("%v (%s)", err, fault.HintOf(err))
	}
	return s
}

// register registers grants, which are for a.example unless they name hosts, and returns the ticket.
func (h *testHome) register(sandbox string, ticket []byte, grants ...client.Granted) []byte {
	h.t.Helper()
	if ticket == nil {
		ticket = make([]byte, ticketLength)
		rand.Read(ticket)
	}
	for i, g := range grants {
		if g.Hosts == nil {
			grants[i].Hosts = []string{"a.example", "*.b.example"}
		}
	}
	r := client.Registration{Sandbox: sandbox, Ticket: ticket, Grants: grants}
	if err := h.Register(h.t.Context(), r); err != nil {
		h.t.Fatalf("%v (%s)", err, fault.HintOf(err))
	}
	return ticket
}

// gate is a gate with its line.
type gate struct {
	*line.Client
	t       *testing.T
	dropped chan string
}

// gate opens a line.
func (h *testHome) gate(ticket []byte) gate {
	h.t.Helper()
	f, err := line.Dial(filepath.Join(h.dir, client.LineSocket), ticket, patience)
	if err != nil {
		h.t.Fatalf("%v (%s)", err, fault.HintOf(err))
	}
	g := gate{t: h.t, dropped: make(chan string, 100)}
	g.Client = line.NewClient(f, func(grant string) { g.dropped <- grant })
	h.t.Cleanup(g.Close)
	return g
}

// get gets a value.
func (g gate) get(grant, host string) (string, error) {
	g.t.Helper()
	v, err := g.Get(g.t.Context(), grant, host, "GET", "/")
	if err != nil {
		return "", err
	}
	defer v.Close()
	if left := time.Until(v.Until); left > maxLife {
		g.t.Errorf("a value for %v", left)
	}
	return string(v.Bytes), nil
}

// want gets a value and compares it.
func (g gate) want(grant, value string) {
	g.t.Helper()
	if got, err := g.get(grant, "a.example"); got != value || err != nil {
		g.t.Errorf("grant %s: %q, %v (%s)", grant, got, err, fault.HintOf(err))
	}
}

// refused checks that the broker gives no value.
func (g gate) refused(grant, host string, kind fault.Kind) {
	g.t.Helper()
	if got, err := g.get(grant, host); got != "" || !fault.Is(err, kind) || fault.HintOf(err) == "" {
		g.t.Errorf("grant %s for %s: %q, %v (%s)", grant, host, got, err, fault.HintOf(err))
	}
}

// drops waits for a drop.
func (g gate) drops(grant string) {
	g.t.Helper()
	select {
	case got := <-g.dropped:
		if got != grant {
			g.t.Errorf("dropped %q, not %q", got, grant)
		}
	case <-time.After(patience):
		g.t.Fatalf("nothing dropped, not %q", grant)
	}
}

// clean checks that no file of the home, and no argument or variable of the broker, has the value.
func (h *testHome) clean(value string) {
	h.t.Helper()
	var forms [][]byte
	for _, f := range []string{value, base64.StdEncoding.EncodeToString([]byte(value)), hex.EncodeToString([]byte(value))} {
		forms = append(forms, []byte(f))
	}
	look := func(path string) error {
		b, err := os.ReadFile(path)
		for _, f := range forms {
			if bytes.Contains(b, f) {
				h.t.Errorf("%s has the value", path)
			}
		}
		return err
	}
	err := filepath.WalkDir(h.dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			err = look(path)
		}
		return err
	})
	if err != nil {
		h.t.Error(err)
	}
	s, err := h.Status(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	proc := "/proc/" + strconv.Itoa(s.PID) + "/"
	if err := look(proc + "cmdline"); err != nil {
		h.t.Error(err)
	}
	if err := look(proc + "environ"); err != nil && os.Geteuid() == 0 {
		h.t.Error(err)
	}
}

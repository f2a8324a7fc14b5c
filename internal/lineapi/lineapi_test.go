package lineapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/looptest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// patience is the time limit for events that a test waits for.
const patience = 60 * time.Second

// listen returns a Unix socket listener with a short path.
func listen(t testing.TB) net.Listener {
	t.Helper()
	dir, err := os.MkdirTemp("", "line")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ln, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// serve starts a server; dial connects to it.
func serve(t testing.TB, opt Options) (s *Server, dial func() *peer) {
	t.Helper()
	opt.Sandbox = "0123456789ab"
	opt.Log = slog.New(slog.DiscardHandler)
	ln := listen(t)
	s = New(opt)
	if looptest.Race {
		s.limit = min(s.limit, 4<<20) // reading a longer one takes a minute
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln, PeersHere) }()
	t.Cleanup(func() {
		ln.Close()
		s.Close()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s, func() *peer {
		t.Helper()
		c, err := net.Dial("unix", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return &peer{t, c.(*net.UnixConn), bufio.NewReaderSize(c, 1<<20)}
	}
}

// peer is a client.
type peer struct {
	t testing.TB
	*net.UnixConn
	r *bufio.Reader
}

func (p *peer) send(s string) {
	p.t.Helper()
	_ = p.SetWriteDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(p.UnixConn, s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) line() string {
	p.t.Helper()
	_ = p.SetReadDeadline(time.Now().Add(patience))
	s, err := p.r.ReadString('\n')
	if err != nil {
		p.t.Fatalf("after %q: %v", s, err)
	}
	return strings.TrimSuffix(s, "\n")
}

// answer returns the lines of one answer.
func (p *peer) answer() (all []string) {
	p.t.Helper()
	for {
		s := p.line()
		all = append(all, s)
		var end struct {
			OK    bool    `json:"ok"`
			Error *string `json:"error"`
		}
		if err := json.Unmarshal([]byte(s), &end); err != nil {
			p.t.Fatalf("%q: %v", s, err)
		}
		if end.OK || end.Error != nil {
			return all
		}
	}
}

func (p *peer) ask(q string) string {
	p.t.Helper()
	p.send(q + "\n")
	a := p.answer()
	return a[len(a)-1]
}

func (p *peer) want(q, part string) {
	p.t.Helper()
	if got := p.ask(q); !strings.Contains(got, part) {
		p.t.Errorf("%s\nanswered %s\nwant     %s", q, got, part)
	}
}

var spawnID = regexp.MustCompile(`coppice-spawn-[0-9a-f]{16}`)

// TestTranscript plays testdata/*.txt: it sends the lines with ">", and compares the answers with those after
// "<".
func TestTranscript(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]Options{
		"owner":  {Engine: full{newFake()}, Level: Owner},
		"rewind": {Engine: full{newFake()}, Level: Rewind, Guard: NewGuard()},
		"read":   {Engine: full{newFake()}, Level: Read, Guard: NewGuard()},
		"older":  {Engine: newFake(), Level: Owner},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join("testdata", name+".txt")
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, dial := serve(t, opt)
			p := dial()
			var got strings.Builder
			for line := range strings.Lines(string(text)) {
				switch {
				case strings.HasPrefix(line, "<"):
				case strings.HasPrefix(line, ">"):
					got.WriteString(line)
					p.send(strings.TrimPrefix(strings.TrimPrefix(line, ">"), " "))
					for _, a := range p.answer() {
						got.WriteString("< " + spawnID.ReplaceAllString(a, "coppice-spawn-ID") + "\n")
					}
				default:
					got.WriteString(line)
				}
			}
			if *update {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got.String() != string(text) {
				t.Errorf("got:\n%s", got.String())
			}
		})
	}
}

func TestRequests_CanBePipelined(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, Options{Engine: newFake(), Level: Owner})
	p := dial()
	p.send(strings.Repeat("{\"op\":\"head\"}\n", 500) + "{\"op\":\"exec\",\"cmd\":\"both\"}\r\nrubbish\n" + `{"op":"log"}`)
	if err := p.CloseWrite(); err != nil { // the last line has no newline
		t.Fatal(err)
	}
	for range 500 {
		if got := p.line(); got != `{"ok":true,"head":"bbbbbbbbbbbb"}` {
			t.Fatal(got)
		}
	}
	if got := strings.Join(p.answer(), "\n"); got != `{"stdout":"out <&>\n"}
{"stderr":"err\n"}
{"ok":true,"exit":3,"node":"cccccccccccc","head":"cccccccccccc"}` {
		t.Error(got)
	}
	if got := p.line(); !strings.HasPrefix(got, `{"error":"expected a JSON object`) {
		t.Error(got)
	}
	if got := p.line(); !strings.HasPrefix(got, `{"ok":true,"nodes":[`) {
		t.Error(got)
	}
	if _, err := p.r.ReadByte(); err != io.EOF {
		t.Errorf("after the last answer: %v", err)
	}
}

func TestExec_DoesNotBlockOtherClients(t *testing.T) {
	t.Parallel()
	f := newFake()
	_, dial := serve(t, Options{Engine: f, Level: Owner})
	long, other := dial(), dial()
	long.send("{\"op\":\"exec\",\"cmd\":\"hold\"}\n")
	for range 3 {
		f.hold <- struct{}{}
		if got := long.line(); got != `{"stdout":"line\n"}` { // as it is produced
			t.Fatal(got)
		}
		other.want(`{"op":"log"}`, `"nodes":[`)
	}
	close(f.hold)
	if got := long.line(); !strings.HasPrefix(got, `{"ok":true,"exit":0,"node":"cccccccccccc"`) {
		t.Error(got)
	}
}

func TestExec_CompletesAfterDisconnect(t *testing.T) {
	t.Parallel()
	f := newFake()
	s, dial := serve(t, Options{Engine: f, Level: Owner})
	p := dial()
	p.send("{\"op\":\"exec\",\"cmd\":\"hold\"}\n")
	f.hold <- struct{}{}
	p.line()
	p.Close()
	for range 3 {
		f.hold <- struct{}{}
	}
	close(f.hold)
	select {
	case <-f.kept:
	case <-time.After(patience):
		t.Fatal("the command did not run to its end")
	}
	eventually(t, "the connection is removed", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == 0
	})
}

func TestTournament_EndsOnDisconnectNotHalfClose(t *testing.T) {
	t.Parallel()
	f := newFake()
	_, dial := serve(t, Options{Engine: full{f}, Level: Owner})
	p := dial()
	p.send(`{"op":"tournament","test":"forever","candidates":[{"name":"a","cmd":"b"}]}` + "\n")
	if err := p.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-f.kept:
		t.Fatal("the tournament ended when its client closed its half")
	case <-time.After(3 * goneEvery):
	}
	p.Close()
	select {
	case <-f.kept:
	case <-time.After(patience):
		t.Fatal("the tournament did not end when its client disconnected")
	}
}

func TestSlowReader_DoesNotBlockOtherClients(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, Options{Engine: newFake(), Level: Owner})
	for range 8 {
		dial().send("{\"op\":\"exec\",\"cmd\":\"flood\"}\n")
	}
	slow := dial()
	slow.send(strings.Repeat("{\"op\":\"log\"}\n", 2000))
	other := dial()
	for range 50 {
		other.want(`{"op":"head"}`, `"head":"bbbbbbbbbbbb"`)
	}
	for i := range 2000 { // no unread answer is lost
		if got := slow.line(); !strings.HasPrefix(got, `{"ok":true,`) {
			t.Fatalf("answer %d: %s", i, got)
		}
	}
}

func TestLines_OfMaximumLength(t *testing.T) {
	t.Parallel()
	s, dial := serve(t, Options{Engine: newFake(), Level: Owner})
	p := dial()
	const frame = `{"op":"exec","cmd":""}`
	long := func(n int) string { return `{"op":"exec","cmd":"` + strings.Repeat("y", n-len(frame)) + `"}` + "\n" }
	go p.send(long(s.limit))
	if got := p.answer(); len(got) != 2 || got[0] != `{"stdout":"yyy"}` ||
		!strings.Contains(got[1], fmt.Sprintf(`"exit":%d,`, s.limit>>20-1)) {
		t.Errorf("the longest line: %q", got)
	}
	go p.send(long(s.limit+1) + "{\"op\":\"head\"}\n")
	if got := p.line(); got != fmt.Sprintf(`{"error":"skipped a line of more than %d bytes","kind":"invalid"}`,
		s.limit) {
		t.Error(got)
	}
	if got := p.line(); got != `{"ok":true,"head":"bbbbbbbbbbbb"}` {
		t.Error(got)
	}
}

// TestHostileClient_IsBounded covers what a sandbox can do to its own socket.
func TestHostileClient_IsBounded(t *testing.T) {
	t.Parallel()
	s, dial := serve(t, Options{Engine: full{newFake()}, Level: Read, Guard: NewGuard()})
	var crowd []*peer
	for range limit.LineConnections - 1 {
		p := dial()
		p.want(`{"op":"head"}`, `"ok":true`)
		crowd = append(crowd, p)
	}
	last := dial()
	last.want(`{"op":"head"}`, `"ok":true`)
	if got := dial().line(); !strings.Contains(got, "too many connections: 32") {
		t.Error(got)
	}
	// Unfinished long lines: two at once are read, and their places are freed.
	for _, p := range crowd[:4] {
		_ = p.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		_, _ = io.CopyN(p.UnixConn, endless{}, 8<<20)
	}
	if n := len(s.opt.Guard.long); n != limit.LineLong {
		t.Errorf("%d long lines at once", n)
	}
	last.want(`{"op":"head"}`, `"ok":true`)
	for _, p := range crowd {
		p.Close()
	}
	eventually(t, "places for long lines are freed", func() bool { return len(s.opt.Guard.long) == 0 })
	eventually(t, "places for connections are freed", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == 1
	})
	last.want(`{"op":"mark","label":"`+strings.Repeat("x", limit.LineText+1)+`"}`, "the limit inside the sandbox is 4096")
	last.want(`{"op":"show","node":"broken"}`, `"internal error"`)

	// Snapshots are limited in rate.
	begun := time.Now()
	for range 12 {
		last.want(`{"op":"mark","label":"l"}`, `"ok":true`)
	}
	if took := time.Since(begun); took < 5*snapshotRest {
		t.Errorf("12 marks took %s", took)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestSpawned_AreFoundAfterRestart(t *testing.T) {
	t.Parallel()
	opt := Options{Engine: newFake(), Level: Owner, Spawned: filepath.Join(t.TempDir(), "spawned")}
	s, dial := serve(t, opt)
	p := dial()
	p.want(`{"op":"spawn","cmd":"sleep"}`, `"ok":true,"pid":41,"log":"/tmp/coppice-spawn-`)
	p.want(`{"op":"spawn","cmd":"stubborn"}`, `"pid":42`)
	p.want(`{"op":"ps"}`, `"procs":[{"pid":41,"args":"sleep","log":"/tmp/coppice-spawn-`)
	p.want(`{"op":"kill","pid":42}`, `{"ok":true}`)
	p.want(`{"op":"kill","pid":42}`, "spawned command 42 not found")
	s.Close()

	_, dial = serve(t, opt)
	p = dial()
	p.want(`{"op":"ps"}`, `"procs":[{"pid":41,"args":"sleep"`)
	p.want(`{"op":"kill","pid":41}`, `{"ok":true}`)
	p.want(`{"op":"ps"}`, `"procs":[]`)
	if b, err := os.ReadFile(opt.Spawned); !os.IsNotExist(err) {
		t.Errorf("the file still exists: %s", b)
	}
}

func TestClose_EndsConnections(t *testing.T) {
	t.Parallel()
	f := newFake()
	s, dial := serve(t, Options{Engine: f, Level: Owner})
	busy := dial()
	busy.send("{\"op\":\"exec\",\"cmd\":\"hold\"}\n")
	f.hold <- struct{}{}
	idle := dial()
	idle.want(`{"op":"spawn","cmd":"sleep"}`, `"ok":true`)
	done := make(chan struct{})
	go func() { s.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the server did not close")
	}
}

func TestConnections_KeepResponsesApart(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, Options{Engine: newFake(), Level: Owner})
	var all sync.WaitGroup
	for i := range 16 {
		p := dial()
		all.Go(func() {
			for j := range 50 {
				ref := fmt.Sprintf("no-%d-%d", i, j)
				if got := p.ask(`{"op":"show","node":"` + ref + `"}`); !strings.Contains(got, ref) {
					t.Errorf("%s: %s", ref, got)
				}
			}
		})
	}
	all.Wait()
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout: %s", what)
		}
	}
}

// FuzzLines checks that every line is returned unchanged, or skipped as a whole.
func FuzzLines(f *testing.F) {
	f.Add([]byte("{}\n\n{\"op\":\"log\"}\r\nlast"), 7)
	f.Add(bytes.Repeat([]byte("x"), 300), 100)
	f.Add([]byte("\n\r\n\r\r\n"), 0)
	f.Fuzz(func(t *testing.T, b []byte, limit int) {
		limit = min(max(limit, 0), 1<<16)
		l := newLines(bytes.NewReader(b), limit)
		want := bytes.SplitAfter(b, []byte("\n"))
		if n := len(want); len(want[n-1]) == 0 {
			want = want[:n-1]
		}
		for i, w := range want {
			w = bytes.TrimSuffix(bytes.TrimSuffix(w, []byte("\n")), []byte("\r"))
			got, err := l.next()
			if long := len(w) > limit; long != (err == errTooLong) || !long && (err != nil || !bytes.Equal(got, w)) {
				t.Fatalf("line %d of %q with limit %d: %q, %v", i, b, limit, got, err)
			}
			if cap(l.buf) > 2*limit+64<<10 {
				t.Fatalf("the buffer has %d bytes", cap(l.buf))
			}
		}
		if got, err := l.next(); err != io.EOF {
			t.Fatalf("at the end: %q, %v", got, err)
		}
	})
}

// FuzzRequests checks that the server answers any line exactly once.
func FuzzRequests(f *testing.F) {
	for _, s := range []string{`{"op":"tag","name":1}`, `{"op":null}`, `[]`, `{"op":"diff","a":"HEAD","b":null}`,
		`{"op":"retain","keep":-1}`, "\x00", `{"op":"exec"}`} {
		f.Add([]byte(s))
	}
	s := New(Options{Engine: full{newFake()}, Level: Rewind, Guard: NewGuard(), Log: slog.New(slog.DiscardHandler)})
	f.Fuzz(func(t *testing.T, line []byte) {
		frame, _ := (&conn{Server: s}).carryOut(line)
		var v map[string]any
		if err := json.Unmarshal(frame, &v); err != nil || bytes.Count(frame, []byte("\n")) != 1 {
			t.Fatalf("%q: %q, %v", line, frame, err)
		}
		if _, failed := v["error"]; failed == (v["ok"] == true) {
			t.Fatalf("%q: %q", line, frame)
		}
	})
}

package line

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/unixsock"
)

const patience = time.Minute

// pair returns a line over a real socket: the broker's end, and the descriptor that a keeper passes on.
func pair(t *testing.T) (*Server, *os.File) {
	t.Helper()
	dir := t.TempDir()
	ln, err := unixsock.ListenPackets(dir, "line", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var s *Server
	var accepting sync.WaitGroup
	accepting.Go(func() {
		conn, err := ln.AcceptUnix()
		if err != nil {
			t.Error(err)
			return
		}
		var ticket []byte
		if s, ticket, err = Accept(conn, patience); err != nil || string(ticket) != "ticket" {
			t.Errorf("%q, %v", ticket, err)
			return
		}
		if err := s.Begin(); err != nil {
			t.Error(err)
		}
	})
	f, err := Dial(filepath.Join(dir, "line"), []byte("ticket"), patience)
	accepting.Wait()
	if err != nil || t.Failed() {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, f
}

// heard collects the calls of dropped.
type heard chan string

func (h heard) want(t *testing.T, grant string) {
	t.Helper()
	select {
	case got := <-h:
		if got != grant {
			t.Errorf("dropped %q, not %q", got, grant)
		}
	case <-time.After(patience):
		t.Fatalf("nothing dropped, not %q", grant)
	}
}

func client(t *testing.T, f *os.File) (*Client, heard) {
	t.Helper()
	h := make(heard, 100)
	c := NewClient(f, func(grant string) { h <- grant })
	t.Cleanup(c.Close)
	return c, h
}

func always() bool { return true }

// give answers the next question.
func give(t *testing.T, s *Server, value string) Ask {
	t.Helper()
	a, err := s.Next()
	if err != nil {
		t.Error(err)
		return a
	}
	v := Value{Bytes: []byte(value), Until: time.Unix(1e9, 0).UTC(), Version: 7}
	if ok, err := s.Give(a, v, &sync.Mutex{}, always); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	return a
}

func TestLine_AnswersWithValues(t *testing.T) {
	t.Parallel()
	s, f := pair(t)
	c, _ := client(t, f)
	for _, value := range []string{"v", strings.Repeat("\n\x00{}", maxValue/4)} {
		var asked sync.WaitGroup
		asked.Go(func() {
			a := give(t, s, value)
			if a.Grant != "github" || a.Host != "api.github.com" || a.Method != "GET" || a.Path != "/user" {
				t.Errorf("%+v", a)
			}
		})
		v, err := c.Get(t.Context(), "github", "api.github.com", "GET", "/user")
		asked.Wait()
		if err != nil || string(v.Bytes) != value || v.Version != 7 || !v.Until.Equal(time.Unix(1e9, 0)) {
			t.Errorf("%v %d %v %v", v, len(v.Bytes), v.Until, err)
		}
		if text := fmt.Sprintf("%v %+v %#v %s %d", v, v, v, v, v); strings.Contains(text, value) {
			t.Error("it prints its value")
		}
		if b, err := json.Marshal(v); err != nil || string(b) != `"[secret]"` {
			t.Errorf("%s, %v", b, err)
		}
		bytesOf := v.Bytes
		v.Close()
		if !bytes.Equal(bytesOf, make([]byte, len(value))) {
			t.Error("it is not wiped")
		}
	}
}

// TestLine_AnswersConcurrently asks more than may be pending, in the order in which the broker does not answer.
func TestLine_AnswersConcurrently(t *testing.T) {
	t.Parallel()
	s, f := pair(t)
	c, _ := client(t, f)
	var all sync.WaitGroup
	const questions = 4 * maxPending
	all.Go(func() {
		var asks []Ask
		for n := range questions {
			a, err := s.Next()
			if err != nil {
				t.Error(err)
				return
			}
			if asks = append(asks, a); len(asks) < 10 && n < questions-10 {
				continue
			}
			for i := len(asks) - 1; i >= 0; i-- {
				v := Value{Bytes: []byte("value of " + asks[i].Grant), Until: time.Now()}
				if ok, err := s.Give(asks[i], v, &sync.Mutex{}, always); !ok || err != nil {
					t.Error(err)
				}
			}
			asks = nil
		}
	})
	for n := range questions {
		all.Go(func() {
			name := fmt.Sprintf("g%d", n)
			v, err := c.Get(t.Context(), name, "a.example", "GET", strings.Repeat("/\xff\"", 1<<14))
			if err != nil || string(v.Bytes) != "value of "+name {
				t.Errorf("%s: %q, %v", name, v.Bytes, err)
			}
		})
	}
	all.Wait()
}

func TestLine_Refuses(t *testing.T) {
	t.Parallel()
	s, f := pair(t)
	c, _ := client(t, f)
	long := strings.Repeat("é", maxHead)
	for _, e := range []*fault.Error{
		fault.New(fault.Denied, "no").WithHint("grant it"), fault.New(fault.Unavailable, "locked").WithHint("unlock it"),
		fault.New(fault.NotFound, "none").WithHint("set it"), fault.New(fault.Timeout, "late").WithHint("wait"),
		fault.New(fault.Invalid, "%s", long).WithHint("%s", long),
	} {
		var asked sync.WaitGroup
		asked.Go(func() {
			a, err := s.Next()
			if err == nil {
				err = s.Refuse(a, e)
			}
			if err != nil {
				t.Error(err)
			}
		})
		_, err := c.Get(t.Context(), "g", "a.example", "GET", "/")
		asked.Wait()
		want := fault.Denied
		if e.Kind == fault.Unavailable || e.Kind == fault.Timeout {
			want = fault.Unavailable
		}
		if !fault.Is(err, want) || !strings.HasPrefix(e.Error(), err.Error()) || !strings.HasPrefix(e.Hint,
			fault.HintOf(err)) || fault.HintOf(err) == "" {
			t.Errorf("%v (%s), not %v", err, fault.HintOf(err), e)
		}
	}
	if _, err := c.Get(t.Context(), "g", strings.Repeat("a", 300), "GET", "/"); !fault.Is(err, fault.Denied) {
		t.Errorf("a long host: %v", err)
	}
}

// TestLine_DropsInOrder checks that what was dropped is not fresh, and what comes after the drop is.
func TestLine_DropsInOrder(t *testing.T) {
	t.Parallel()
	s, f := pair(t)
	c, h := client(t, f)
	get := func() Value {
		var asked sync.WaitGroup
		defer asked.Wait()
		asked.Go(func() { give(t, s, "value") })
		v, err := c.Get(t.Context(), "g", "a.example", "GET", "/")
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	v := get()
	s.Drop("other")
	h.want(t, "other")
	if !c.Fresh("g", v) {
		t.Error("the drop of another grant made the value old")
	}
	s.Drop("g")
	h.want(t, "g")
	if c.Fresh("g", v) {
		t.Error("a dropped value is fresh")
	}
	if v = get(); !c.Fresh("g", v) {
		t.Error("a new value is not fresh")
	}
	var asked sync.WaitGroup
	asked.Go(func() { // a value that is no longer valid is not sent
		a, err := s.Next()
		if err != nil {
			t.Error(err)
			return
		}
		never := func() bool { return false }
		v := Value{Bytes: []byte("old"), Until: time.Now()}
		if ok, err := s.Give(a, v, &sync.Mutex{}, never); ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
		if err := s.Refuse(a, fault.New(fault.Denied, "gone")); err != nil {
			t.Error(err)
		}
	})
	if _, err := c.Get(t.Context(), "g", "a.example", "GET", "/"); !fault.Is(err, fault.Denied) {
		t.Error(err)
	}
	asked.Wait()
}

func TestLine_Breaks(t *testing.T) {
	t.Parallel()
	s, f := pair(t)
	c, h := client(t, f)
	var asked sync.WaitGroup
	asked.Go(func() {
		if _, err := s.Next(); err != nil {
			t.Error(err)
		}
		s.Close()
	})
	_, err := c.Get(t.Context(), "g", "a.example", "GET", "/")
	asked.Wait()
	h.want(t, "")
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.HintOf(err), "coppice secret ls") {
		t.Errorf("%v (%s)", err, fault.HintOf(err))
	}
	if _, err := c.Get(t.Context(), "g", "a.example", "GET", "/"); !fault.Is(err, fault.Unavailable) {
		t.Error(err)
	}
	c.Close()
	if len(h) > 0 {
		t.Errorf("dropped %q after the end", <-h)
	}
}

func TestLine_CloseIsSilent(t *testing.T) {
	t.Parallel()
	s, f := pair(t)
	c, h := client(t, f)
	c.Close()
	if _, err := s.Next(); err == nil {
		t.Error("the line is open")
	}
	if len(h) > 0 {
		t.Errorf("dropped %q", <-h)
	}
}

// TestLine_LateAnswers checks that the answer to a question whose context has ended disturbs nothing.
func TestLine_LateAnswers(t *testing.T) {
	t.Parallel()
	s, f := pair(t)
	c, _ := client(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan Ask)
	go func() {
		a, err := s.Next()
		if err != nil {
			t.Error(err)
		}
		cancel()
		first <- a
	}()
	if _, err := c.Get(ctx, "a", "a.example", "GET", "/"); !fault.Is(err, fault.Cancelled) {
		t.Error(err)
	}
	if ok, err := s.Give(<-first, Value{Bytes: []byte("late"), Until: time.Now()}, &sync.Mutex{}, always); !ok || err != nil {
		t.Error(ok, err)
	}
	var asked sync.WaitGroup
	asked.Go(func() { give(t, s, "value") })
	v, err := c.Get(t.Context(), "b", "a.example", "GET", "/")
	asked.Wait()
	if err != nil || string(v.Bytes) != "value" {
		t.Errorf("%q, %v", v.Bytes, err)
	}
}

// TestLine_GateThatDoesNotRead checks that a gate that reads nothing loses its line, and delays no drop.
func TestLine_GateThatDoesNotRead(t *testing.T) {
	t.Parallel()
	s, f := pair(t)
	defer f.Close()
	for range 1 << 16 {
		s.Drop("g")
	}
	if _, err := s.Next(); err == nil {
		t.Error("the line is open")
	}
}

func TestDial_Errors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "line")
	fails := func(kind fault.Kind) {
		t.Helper()
		f, err := Dial(path, []byte("ticket"), 50*time.Millisecond)
		if err == nil {
			f.Close()
		}
		if !fault.Is(err, kind) || fault.HintOf(err) == "" {
			t.Errorf("%v (%s), not %s", err, fault.HintOf(err), kind)
		}
	}
	fails(fault.Unavailable) // none
	ln, err := unixsock.ListenPackets(dir, "line", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	fails(fault.Unavailable) // no answer
	conn, err := ln.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	var accepting sync.WaitGroup
	accepting.Go(func() {
		conn, err := ln.AcceptUnix()
		if err != nil {
			t.Error(err)
			return
		}
		s, _, err := Accept(conn, patience)
		if err != nil {
			t.Error(err)
			return
		}
		s.Reject(fault.New(fault.Denied, "unknown ticket").WithHint("restart it"))
	})
	f, err := Dial(path, []byte("ticket"), patience)
	accepting.Wait()
	if f != nil || !fault.Is(err, fault.Denied) || fault.HintOf(err) != "restart it" {
		t.Errorf("%v, %v", f, err)
	}
	ln.Close()
	fails(fault.Unavailable) // closed
}

// TestLine_RefusesOtherMessages sends what is not a message to both ends.
func TestLine_RefusesOtherMessages(t *testing.T) {
	t.Parallel()
	is := `{"is":"g","id":1,"until":"2026-01-02T15:04:05Z"}` + "\n"
	for name, b := range map[string]string{
		"no line": `{"drop":"g"}`, "no JSON": "drop\n", "two verbs": `{"drop":"g","ok":true}` + "\n",
		"an unknown field": `{"drop":"g","x":1}` + "\n", "two objects": `{"drop":"g"}{"drop":"g"}` + "\n",
		"a value without is": `{"drop":"g"}` + "\nvalue", "is without a value": is, "no verb": "{}\n",
		"a long value": is + strings.Repeat("v", maxValue+1), "a long head": `{"drop":"g"` + strings.Repeat(" ", maxHead) + "}\n",
		"a long packet": strings.Repeat(" ", 2*maxText) + "\n", "another's question": `{"get":"g","host":"h"}` + "\n",
	} {
		s, f := pair(t)
		raw, err := s.conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		c, h := client(t, f)
		if err := raw.Control(func(fd uintptr) { err = write(fd, []byte(b)) }); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		h.want(t, "")
		c.Close()

		s, f = pair(t)
		if err := unix.Sendto(int(f.Fd()), []byte(b), unix.MSG_DONTWAIT, nil); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if a, err := s.Next(); err == nil {
			t.Errorf("%s: the broker takes it for %+v", name, a)
		}
	}
}

func TestMessage_RoundTrips(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := message{Is: rapid.StringN(1, -1, maxName).Draw(t, "grant"), ID: rapid.Uint64Range(1, 1<<63).Draw(t, "id"),
			Until: time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "until"), 0).UTC(), Version: rapid.Int64().Draw(t, "version")}
		value := rapid.SliceOfN(rapid.Byte(), 1, 1000).Draw(t, "value")
		b, err := m.encode(value)
		if err != nil {
			t.Fatal(err)
		}
		got, v, err := decode(b)
		if err != nil || got.Is != m.Is || got.ID != m.ID || got.Version != m.Version || !got.Until.Equal(m.Until) ||
			!bytes.Equal(v, value) {
			t.Errorf("%+v, %v; not %+v", got, err, m)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"get":"g","id":1,"host":"h"}` + "\n"))
	f.Add([]byte(`{"is":"g","id":1,"until":"2026-01-02T15:04:05Z","version":2}` + "\nvalue"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, value, err := decode(b)
		if err != nil {
			return
		}
		again, err := m.encode(value)
		if err != nil {
			return // JSON escapes may be longer
		}
		if n, v, err := decode(again); err != nil || n.Get != m.Get || n.ID != m.ID || !bytes.Equal(v, value) {
			t.Errorf("%+v, %v; not %+v", n, err, m)
		}
	})
}

package wallet

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/secret/line"
)

const (
	token  = "ghp_0123456789abcdefghijABCDEFGHIJ4SvFQn"
	newer  = "ghp_rotatedABCDEFGHIJabcdefghij012345678"
	inside = "ghp_PLACEHOLDERplaceholder0000000000AAAA"
)

// broker is the other end of a line.
type broker struct {
	mu    sync.Mutex
	value string        // guarded by mu
	until time.Duration // of values; guarded by mu
	err   error         // guarded by mu
	gets  int           // guarded by mu
	stale int           // answers that are dropped at once; guarded by mu
	wait  chan struct{} // if not nil, an answer waits for it
}

func (b *broker) Get(ctx context.Context, _, _, _, _ string) (line.Value, error) {
	b.mu.Lock()
	b.gets++
	v := line.Value{Bytes: []byte(b.value), Until: time.Now().Add(b.until)}
	err := b.err
	b.mu.Unlock()
	if b.wait != nil {
		select {
		case <-b.wait:
		case <-ctx.Done():
			return line.Value{}, ctx.Err()
		}
	}
	return v, err
}

func (b *broker) Fresh(string, line.Value) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stale--
	return b.stale < 0
}

// issued returns a grant for api.example.
func issued(t *testing.T, change func(*grant.Item)) grant.Issued {
	t.Helper()
	i := grant.Item{Hosts: []string{"api.example"}, Sites: []grant.SiteItem{{In: "bearer"}}}
	if change != nil {
		change(&i)
	}
	g, err := i.Grant("github", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	return grant.Issued{Grant: g, Placeholder: inside}
}

func start(t *testing.T, b *broker, g grant.Issued) *Wallet {
	t.Helper()
	w := New(time.Now)
	w.Connect(b)
	give(t, w, g)
	t.Cleanup(w.Close)
	return w
}

func give(t *testing.T, w *Wallet, all ...grant.Issued) {
	t.Helper()
	if err := w.Change(Grants{Sandbox: "box", Issued: all}); err != nil {
		t.Fatal(err)
	}
}

func host(t *testing.T) policy.Host {
	t.Helper()
	h, err := policy.ParseHost("api.example")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func request() *http.Request {
	r, _ := http.NewRequest(http.MethodGet, "https://api.example/", nil)
	r.Header.Set("Authorization", "Bearer "+inside)
	return r
}

// decide decides about a request with the placeholder.
func decide(t *testing.T, w *Wallet) (*Carry, *grant.Refusal) {
	t.Helper()
	r := request()
	c, pending, no := w.Decide(use(t, r), nil)
	if pending != nil {
		t.Fatalf("grant %s requires approval", pending.Grant.Name)
	}
	return c, no
}

func use(t *testing.T, r *http.Request) grant.Use {
	return grant.Use{Host: host(t), Port: 443, TLS: true, Header: r.Header,
		HTTP: policy.HTTPRequest{Method: r.Method, Path: "/"}}
}

// carry decides about a request and gets its value.
func carry(t *testing.T, w *Wallet) *Carry {
	t.Helper()
	c, no := decide(t, w)
	if no != nil || c == nil {
		t.Fatalf("%+v", no)
	}
	if err := c.Fetch(t.Context(), host(t), "GET", "/"); err != nil {
		t.Fatal(err)
	}
	return c
}

// sent returns what leaves.
func sent(t *testing.T, c *Carry) string {
	t.Helper()
	r := request()
	if err := c.Into(r, nil, nil); err != nil {
		return err.Error()
	}
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

// finds reports whether the wallet removes a text from answers.
func finds(w *Wallet, text string) bool {
	h := http.Header{"X": {text}}
	w.Live().Header(h, func(string) {})
	return h.Get("X") != text
}

// TestValues_AreKeptForAMinute checks how long a value is used and searched for.
func TestValues_AreKeptForAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &broker{value: token, until: time.Hour}
		w := start(t, b, issued(t, nil))
		running := carry(t, w)
		for range 10 {
			carry(t, w).Done()
		}
		if b.gets != 1 || sent(t, running) != token {
			t.Errorf("asked %d times", b.gets)
		}
		time.Sleep(keepFor)
		w.Sweep()
		if !finds(w, token) {
			t.Error("the answer to a request in progress is not searched")
		}
		running.Done()
		if finds(w, token) || len(w.held) != 0 {
			t.Error("the value is still known")
		}
		b.until = time.Second
		carry(t, w).Done()
		time.Sleep(time.Second)
		if carry(t, w).Done(); b.gets != 3 {
			t.Errorf("asked %d times", b.gets)
		}
	})
}

// TestValues_AreSearchedInStreams checks that an answer that began before the first use of a grant is searched until it
// ends, with one copy of each value.
func TestValues_AreSearchedInStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &broker{value: token, until: time.Hour}
		w := start(t, b, issued(t, nil))
		stream, _, no := w.Decide(grant.Use{Host: host(t), Port: 443, TLS: true,
			HTTP: policy.HTTPRequest{Method: "GET", Path: "/events"}}, nil)
		if no != nil || stream == nil || len(stream.Grants) > 0 || stream.Fetch(t.Context(), host(t), "GET", "/") != nil {
			t.Fatalf("%+v, %+v", stream, no)
		}
		for range 3 {
			carry(t, w).Done()
			time.Sleep(keepFor)
			w.Sweep()
		}
		if !finds(w, token) || len(w.held) != 1 || b.gets != 3 {
			t.Errorf("%d values are searched for, of %d", len(w.held), b.gets)
		}
		w.Drop("github")
		b.value = newer
		carry(t, w).Done()
		if !finds(w, token) || !finds(w, newer) {
			t.Error("an old value or the new one is not searched")
		}
		time.Sleep(keepFor)
		stream.Done()
		stream.Done()
		if finds(w, token) || finds(w, newer) || len(w.held) != 0 || len(w.open) != 0 {
			t.Error("the values are still known")
		}
	})
}

// TestInto_RefusesExpiredGrants checks that a request whose body arrives slowly does not leave after the end of its grant.
func TestInto_RefusesExpiredGrants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := start(t, &broker{value: token, until: time.Hour}, issued(t, func(i *grant.Item) { i.For = "8h" }))
		c := carry(t, w)
		defer c.Done()
		if until := c.Grants["github"].Until; until.After(time.Now()) {
			time.Sleep(time.Until(until))
		}
		if out := sent(t, c); !strings.Contains(out, "expired") {
			t.Error("a request left after the end of its grant")
		}
	})
}

// TestDrop_EndsUseOfOldValue checks a rotation, also while the old value arrives.
func TestDrop_EndsUseOfOldValue(t *testing.T) {
	t.Parallel()
	b := &broker{value: token, until: time.Hour, stale: 2}
	w := start(t, b, issued(t, nil))
	old := carry(t, w)
	if b.gets != 3 {
		t.Errorf("asked %d times", b.gets)
	}
	b.value = newer
	w.Drop("github")
	w.Drop("other")
	w.Drop("")
	next := carry(t, w)
	if sent(t, next) != newer || !finds(w, token) || !finds(w, newer) {
		t.Error("the old value is used, or is not searched although a request carries it")
	}
	old.Done()
	next.Done()
	if finds(w, token) || !finds(w, newer) {
		t.Error("the old value is still known, or the new one not")
	}
	b.stale = 100
	w.Drop("github")
	c, _ := decide(t, w)
	if err := c.Fetch(t.Context(), host(t), "GET", "/"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
	c.Cancel()
}

// TestChange_ForgetsValues checks that no request that was decided before a change carries the secret after it.
func TestChange_ForgetsValues(t *testing.T) {
	t.Parallel()
	revoked := issued(t, nil)
	revoked.Revoked = true
	narrowed := issued(t, func(i *grant.Item) { i.Paths = []string{"/a"} })
	for name, next := range map[string][]grant.Issued{"gone": nil, "revoked": {revoked}, "narrowed": {narrowed}} {
		b := &broker{value: token, until: time.Hour}
		w := start(t, b, issued(t, nil))
		c := carry(t, w)
		late, _ := decide(t, w)
		held := b.value
		give(t, w, next...)
		if w.Gone(c.Grants) != "github" || !strings.Contains(sent(t, c), "was revoked") {
			t.Errorf("%s: a request still carries the secret", name)
		}
		if err := late.Fetch(t.Context(), host(t), "GET", "/"); !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", name, err)
		}
		w.Forget()
		if name != "narrowed" && finds(w, held) {
			t.Errorf("%s: the value is still known", name)
		}
		late.Cancel()
		c.Done()
		if finds(w, held) {
			t.Errorf("%s: the value is still known", name)
		}
	}
}

// TestChange_DuringFetch revokes the grant while its value is on its way.
func TestChange_DuringFetch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &broker{value: token, until: time.Hour, wait: make(chan struct{})}
		w := start(t, b, issued(t, nil))
		var all sync.WaitGroup
		errs := make(chan error, 10)
		for range cap(errs) {
			c, _ := decide(t, w)
			all.Go(func() { errs <- c.Fetch(context.Background(), host(t), "GET", "/") })
		}
		synctest.Wait()
		give(t, w)
		close(b.wait)
		all.Wait()
		for range cap(errs) {
			if err := <-errs; !fault.Is(err, fault.Denied) {
				t.Errorf("%v", err)
			}
		}
		if b.gets != 1 || finds(w, token) {
			t.Errorf("asked %d times at once, or the value is known", b.gets)
		}
	})
}

// TestFetch_Fails checks errors of the broker; those are not kept.
func TestFetch_Fails(t *testing.T) {
	t.Parallel()
	b := &broker{value: token, until: time.Hour, err: fault.New(fault.Denied, "no").WithHint("ask")}
	w := start(t, b, issued(t, func(i *grant.Item) { i.Uses = 1 }))
	for _, err := range []error{b.err, fault.New(fault.Unavailable, "locked").WithHint("unlock")} {
		b.err = err
		c, _ := decide(t, w)
		if got := c.Fetch(t.Context(), host(t), "GET", "/"); !errors.Is(got, err) {
			t.Errorf("%v", got)
		}
		c.Cancel()
	}
	w.Connect(nil)
	c, _ := decide(t, w)
	if err := c.Fetch(t.Context(), host(t), "GET", "/"); !fault.Is(err, fault.Unavailable) || fault.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	c.Cancel()
	b.err = nil
	w.Connect(b)
	carry(t, w).Done() // the only use
	if _, no := decide(t, w); no == nil || !strings.Contains(no.Reason, "used up") {
		t.Errorf("%+v", no)
	}
}

// TestUses_SurviveChanges checks what a change does to the counts.
func TestUses_SurviveChanges(t *testing.T) {
	t.Parallel()
	b := &broker{value: token, until: time.Hour}
	g := issued(t, func(i *grant.Item) { i.Uses = 10 })
	w := start(t, b, g)
	for range 4 {
		carry(t, w).Done()
	}
	again := issued(t, func(i *grant.Item) { i.Uses = 11 })
	for _, x := range []struct {
		g    grant.Issued
		used int64
		want int64
	}{{g, 2, 4}, {g, 6, 6}, {again, 1, 1}} {
		if err := w.Change(Grants{Sandbox: "box", Issued: []grant.Issued{x.g}, Used: map[string]int64{"github": x.used}}); err != nil {
			t.Fatal(err)
		}
		if got := w.counts["github"].used; got != x.want {
			t.Errorf("%+v: %d", x, got)
		}
	}
}

// TestRate_IsBounded checks that no interval has many more uses than the rate allows.
func TestRate_IsBounded(t *testing.T) {
	t.Parallel()
	rate := policy.Rate{Count: 10, Per: time.Minute}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var c count
	var used []time.Time
	for range 1000 {
		if c.recent(at, rate) < rate.Count {
			c.add(at, rate)
			used = append(used, at)
		}
		at = at.Add(time.Second)
	}
	if n := len(used); n < 120 || n > 180 { // 1000 seconds at 10 a minute are 166
		t.Errorf("%d uses", n)
	}
	for i := range used {
		if i >= 15 && used[i].Sub(used[i-15]) < rate.Per {
			t.Errorf("16 uses within %v", used[i].Sub(used[i-15]))
		}
	}
	if got := c.recent(at.Add(-time.Hour), rate); got != 0 { // the clock was set back
		t.Errorf("%d", got)
	}
}

// TestWallet_Concurrent uses all methods at once.
func TestWallet_Concurrent(t *testing.T) {
	t.Parallel()
	b := &broker{value: token, until: time.Hour}
	g := issued(t, nil)
	w := start(t, b, g)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 200 {
				switch c, _ := decide(t, w); {
				case i == 0 && n%10 == 0:
					w.Drop("github")
				case i == 1 && n%10 == 0:
					_ = w.Change(Grants{Sandbox: "box"})
					w.Forget()
					_ = w.Change(Grants{Sandbox: "box", Issued: []grant.Issued{g}})
				case c != nil:
					if err := c.Fetch(context.Background(), host(t), "GET", "/"); err == nil {
						if got := sent(t, c); got != token && !strings.Contains(got, "revoked") &&
							!strings.Contains(got, "control characters") {
							t.Errorf("%q", got)
						}
						finds(w, token)
					}
					c.Done()
				}
			}
		})
	}
	all.Wait()
}

// TestDecide_Asks checks that a request of a grant that requires approval has no use until it is approved, and which
// approvals hold.
func TestDecide_Asks(t *testing.T) {
	t.Parallel()
	for _, mode := range []grant.AskMode{grant.AskFirst, grant.AskEach, "unknown"} {
		w := New(time.Now)
		one := issued(t, nil)
		one.Ask = mode
		change := func(g grant.Issued, hosts ...string) {
			t.Helper()
			err := w.Change(Grants{Issued: []grant.Issued{g}, Approved: map[string][]string{g.Name: hosts}})
			if err != nil {
				t.Fatal(err)
			}
		}
		change(one)
		c, pending, no := w.Decide(use(t, request()), nil)
		if c != nil || no != nil || pending == nil || pending.Grant.Name != one.Name ||
			pending.Each != (mode == grant.AskEach) {
			t.Fatalf("%s: %v, %+v, %v", mode, c, pending, no)
		}
		if gone, asks := w.Review(pending, host(t)); gone || !asks {
			t.Errorf("%s: gone %v, asks %v", mode, gone, asks)
		}
		// An approval of another grant, or of an earlier form of it, does not hold.
		other := one
		other.Uses = 77
		if c, _, _ := w.Decide(use(t, request()), Carried{one.Name: other}); c != nil {
			t.Errorf("%s: the approval of another grant holds", mode)
		}
		if c, _, _ := w.Decide(use(t, request()), Carried{one.Name: one}); c == nil {
			t.Errorf("%s: an approved request is not allowed", mode)
		} else {
			c.Cancel()
		}
		if used := w.counts[one.Name].used; used != 0 {
			t.Errorf("%s: %d uses of requests that did not leave", mode, used)
		}
		change(one, "other.example")
		if c, _, _ := w.Decide(use(t, request()), nil); c != nil {
			t.Errorf("%s: the approval of another host holds", mode)
		}
		change(one, "api.example")
		c, pending, _ = w.Decide(use(t, request()), nil)
		if (c != nil) != (mode == grant.AskFirst) {
			t.Errorf("%s: with an approved host: %v, %v", mode, c, pending)
		}
		change(other)
		if gone, _ := w.Review(&Pending{Grant: one}, host(t)); !gone {
			t.Errorf("%s: a changed grant is not gone", mode)
		}
	}
}

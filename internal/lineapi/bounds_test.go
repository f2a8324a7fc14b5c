package lineapi

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/admission"
	"github.com/coppice-dev/coppice/internal/limit"
)

// vast is an Engine with as many snapshots and changes as requested.
type vast struct {
	*fake
	nodes int
	asked atomic.Int64 // the limit of the last request for changes

	now     atomic.Int64  // requests for HEAD in progress
	crowded atomic.Bool   // more than limit.LineTurns were in progress
	ask     chan struct{} // receives for each request that has begun
	answer  chan struct{} // releases one request
}

func (v *vast) Snapshots(context.Context, string) (wire.LogResult, error) {
	nodes := make([]wire.Snapshot, v.nodes)
	for i := range nodes {
		nodes[i].ID = fmt.Sprintf("%012x", i)
	}
	return wire.LogResult{Nodes: nodes, Head: "000000000000"}, nil
}

func (v *vast) changes(most int) ([]wire.Change, bool) {
	v.asked.Store(int64(most))
	return make([]wire.Change, most), true
}

func (v *vast) ShowSome(_ context.Context, _, _ string, most int) (res wire.ShowResult, err error) {
	res.Changes, res.Truncated = v.changes(most)
	return res, nil
}

func (v *vast) Diff(ctx context.Context, _ string, q wire.DiffRequest) (res wire.DiffResult, err error) {
	if q.A == "endless" {
		v.ask <- struct{}{}
		<-ctx.Done()
		close(v.answer)
		return res, ctx.Err()
	}
	res.Changes, res.Truncated = v.changes(q.Limit)
	return res, nil
}

func (v *vast) Head(context.Context, string) (string, error) {
	n := v.now.Add(1)
	if n > limit.LineTurns {
		v.crowded.Store(true)
	}
	v.ask <- struct{}{}
	<-v.answer
	v.now.Add(-1)
	return "", nil
}

func TestGuest_BoundsChanges(t *testing.T) {
	t.Parallel()
	for _, q := range []string{`{"op":"diff","a":"HEAD~1","b":"HEAD"}`, `{"op":"show","node":"HEAD"}`} {
		v := &vast{fake: newFake()}
		_, inside := serve(t, Options{Engine: v, Level: Read, Guard: NewGuard()})
		inside().want(q, `"truncated":true`)
		if n := v.asked.Load(); n != limit.LineChanges {
			t.Errorf("%s inside requests %d changes, want %d", q, n, limit.LineChanges)
		}
		_, outside := serve(t, Options{Engine: v, Level: Owner})
		outside().want(q, `"truncated":true`)
		if n := v.asked.Load(); n != 0 {
			t.Errorf("%s outside requests %d changes, want the default", q, n)
		}
	}
}

func TestGuest_ListsNewestSnapshots(t *testing.T) {
	t.Parallel()
	for n, cut := range map[int]bool{limit.LineNodes: false, limit.LineNodes + 1: true} {
		v := &vast{fake: newFake(), nodes: n}
		_, inside := serve(t, Options{Engine: v, Level: Read, Guard: NewGuard()})
		got := inside().ask(`{"op":"log"}`)
		if strings.Contains(got, `"truncated":true`) != cut || strings.Count(got, `"id"`) != limit.LineNodes ||
			!strings.Contains(got, `"000000000000"`) {
			t.Errorf("%d snapshots: %d of them, truncated %v", n, strings.Count(got, `"id"`), !cut)
		}
		_, outside := serve(t, Options{Engine: v, Level: Owner})
		if got := outside().ask(`{"op":"log"}`); strings.Count(got, `"id"`) != n || strings.Contains(got, "truncated") {
			t.Errorf("outside: %d of %d snapshots", strings.Count(got, `"id"`), n)
		}
	}
}

func TestGuest_AbandonedDiffIsCancelled(t *testing.T) {
	t.Parallel()
	v := &vast{fake: newFake(), ask: make(chan struct{}), answer: make(chan struct{})}
	_, dial := serve(t, Options{Engine: v, Level: Read, Guard: NewGuard()})
	p := dial()
	p.send(`{"op":"diff","a":"endless"}` + "\n")
	<-v.ask
	p.Close()
	select {
	case <-v.answer:
	case <-time.After(patience):
		t.Error("the diff continues after its client disconnected")
	}
}

func TestGuest_LimitsConcurrentRequests(t *testing.T) {
	t.Parallel()
	const clients = limit.LineTurns + 3
	v := &vast{fake: newFake(), ask: make(chan struct{}, clients), answer: make(chan struct{}, clients)}
	_, dial := serve(t, Options{Engine: v, Level: Read, Guard: NewGuard()})
	peers := make([]*peer, clients)
	for i := range peers {
		peers[i] = dial()
		peers[i].send(`{"op":"head"}` + "\n")
	}
	for range clients {
		<-v.ask
		v.answer <- struct{}{}
	}
	for _, p := range peers {
		p.answer()
	}
	if v.crowded.Load() {
		t.Errorf("more than %d requests at once", limit.LineTurns)
	}
}

// allocated returns the number of bytes that fn allocates. No other test may run meanwhile.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestGuest_LineUsesLittleMemory covers a line of 60 MB from inside, which once took 1.6 GB.
//
// It is not parallel, since it counts the allocations of the process.
func TestGuest_LineUsesLittleMemory(t *testing.T) {
	_, dial := serve(t, Options{Engine: full{newFake()}, Level: Read, Guard: NewGuard()})
	p := dial()
	p.want(`{"op":"head"}`, `"ok":true`)
	_ = p.SetWriteDeadline(time.Now().Add(patience))
	got := allocated(func() {
		p.send(`{"op":"diff","a":"HEAD","paths":[""`)
		part := []byte(strings.Repeat(`,"a"`, 4<<10))
		for range (60 << 20) / len(part) {
			if _, err := p.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		p.want("]}", fmt.Sprintf(`"skipped a line of more than %d bytes","kind":"invalid"`, limit.LineInside))
	})
	if got > 4<<20 {
		t.Errorf("a line of 60 MB made the process allocate %d bytes", got)
	}
	p.want(`{"op":"head"}`, `"ok":true`)

	const frame = `{"op":"show","node":""}`
	p.want(`{"op":"show","node":"`+strings.Repeat("x", limit.LineInside-len(frame))+`"}`, `"kind":"not_found"`)
	got = allocated(func() {
		p.want(`{"op":"diff","a":"HEAD","paths":[""`+strings.Repeat(`,""`, limit.LineInside/3-20)+`]}`, `"kind":"too_large"`)
	})
	if got > 8<<20 {
		t.Errorf("a line with the maximum number of paths made the process allocate %d bytes", got)
	}
}

func TestGuest_BoundsPaths(t *testing.T) {
	t.Parallel()
	_, inside := serve(t, Options{Engine: newFake(), Level: Read, Guard: NewGuard()})
	_, outside := serve(t, Options{Engine: newFake(), Level: Owner})
	diff := func(n int) string {
		return `{"op":"diff","a":"HEAD","paths":["b"` + strings.Repeat(`,"a"`, n-1) + `]}`
	}
	inside().want(diff(limit.LinePaths), `"ok":true`)
	inside().want(diff(limit.LinePaths+1), `"kind":"too_large"`)
	outside().want(diff(limit.LinePaths+1), `"ok":true`)
}

func TestCostlyRequests_WaitForMemory(t *testing.T) {
	t.Parallel()
	const id = "0123456789ab" // the ID in serve
	gate := admission.New(admission.Options{Memory: limit.CostLarge, Log: slog.New(slog.DiscardHandler)})
	leave, err := gate.Enter(t.Context(),
		admission.Request{Cost: limit.CostLarge, Parties: []admission.Party{admission.Sandbox(id)}})
	if err != nil {
		t.Fatal(err)
	}
	for range limit.AdmissionWaitingOne { // further requests are refused at once
		work := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(work)
			if leave, err := gate.Enter(ctx,
				admission.Request{Cost: limit.CostLarge, Parties: []admission.Party{admission.Sandbox(id)}}); err == nil {
				leave()
			}
		}()
		defer func() { cancel(); <-work }()
	}
	for gate.Stats().Waiting < limit.AdmissionWaitingOne {
		runtime.Gosched()
	}
	_, c := serve(t, Options{Engine: newFake(), Level: Owner, Admission: gate})
	client := c()
	client.want(`{"op":"diff","a":"HEAD","b":"HEAD"}`, `"kind":"unavailable"`)
	client.want(`{"op":"head"}`, `"ok":true`)
	leave()
}

// TestGuest_DoesNotSeeFactsOfTheHost checks that a memory image in the history says nothing about the host inside.
func TestGuest_DoesNotSeeFactsOfTheHost(t *testing.T) {
	t.Parallel()
	v := remembering{newFake()}
	_, inside := serve(t, Options{Engine: v, Level: Read, Guard: NewGuard()})
	_, outside := serve(t, Options{Engine: v, Level: Owner})
	for _, q := range []string{`{"op":"log"}`, `{"op":"show","node":"HEAD"}`} {
		outside().want(q, "avx512")
		if got := inside().ask(q); !strings.Contains(got, `"memory"`) || strings.Contains(got, "avx512") {
			t.Errorf("%s: %s", q, got)
		}
	}
}

// remembering is an Engine whose HEAD has a memory image.
type remembering struct{ *fake }

func (remembering) head() wire.Snapshot {
	n := tip
	n.Memory = &wire.Memory{Image: "i", Facts: map[string]string{"cpu": "avx512"}}
	return n
}

func (r remembering) Snapshots(context.Context, string) (wire.LogResult, error) {
	return wire.LogResult{Nodes: []wire.Snapshot{r.head()}, Head: tip.ID}, nil
}

func (r remembering) ShowSome(context.Context, string, string, int) (wire.ShowResult, error) {
	return wire.ShowResult{Snapshot: r.head()}, nil
}

// TestTrial_TellsItsClient checks that a trial from inside names its client, ends with it, and tells no paths of the
// host.
func TestTrial_TellsItsClient(t *testing.T) {
	t.Parallel()
	f := full{newFake()}
	_, inside := serve(t, Options{Engine: f, Level: Rewind, Guard: NewGuard()})
	inside().want(`{"op":"trial","cmd":"who"}`, `"tail":"false true"`)
	if got := inside().ask(`{"op":"trial","cmd":"full"}`); strings.Contains(got, "home") ||
		!strings.Contains(got, `"kind":"internal"`) {
		t.Error(got)
	}
	inside().want(`{"op":"trial","cmd":"`+strings.Repeat("x", limit.LineText+1)+`"}`, `"kind":"invalid"`)
	first := inside()
	first.send(`{"op":"trial","cmd":"hold"}` + "\n")
	<-f.hold
	first.Close()
	<-f.kept
}

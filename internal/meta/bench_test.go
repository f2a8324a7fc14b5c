package meta

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// chain makes a sandbox with n snapshots, each with a layer. If merge is set, layers are merged as the engine does.
func chain(t testing.TB, d *DB, n int, merge bool) Sandbox {
	rec := box(t, d, fmt.Sprint("chain-", n, merge), "")
	for range n {
		snap(t, d, &rec, "apt-get install -y nginx")
		if !merge {
			continue
		}
		line := must(d.Lineage(t.Context(), rec.Head))(t)
		for _, p := range must(line.Merges(rec.Head))(t) {
			ok(t, d.AddRoute(t.Context(), timeline.Route{Top: p.Top, Below: p.Below, Layer: newLayer(t), Merged: true}))
		}
	}
	return rec
}

// many makes n sandboxes that fork one snapshot, in batches.
func many(t testing.TB, d *DB, n int) {
	src := box(t, d, "src", "")
	base := snap(t, d, &src, "base")
	var recs []Sandbox
	var firsts []timeline.Snapshot
	for i := range n {
		s := timeline.Snapshot{ID: newSnap(t), Sandbox: newBox(t), Parent: base.Top, Cause: timeline.CauseFork,
			Created: epoch}
		rec := src
		rec.ID, rec.Name, rec.Head, rec.MountTop = s.Sandbox, fmt.Sprint("fork-", i), s.ID, base.Top
		rec.From = fmt.Sprint("src@", i/2) // half of the records are unlike any other
		for j := range 12 {
			rec.Enforced = append(rec.Enforced[:j:j],
				wire.Enforcement{Name: fmt.Sprint("wall-", j), State: wire.EnforcedOn, Detail: "by a filter of 300 rules"})
		}
		recs, firsts = append(recs, rec), append(firsts, s)
		if len(recs) == 1000 || i == n-1 {
			ok(t, d.CreateSandboxes(t.Context(), recs, firsts))
			recs, firsts = nil, nil
		}
	}
}

// quantiles reports the median and the 99th percentile of the duration of fn.
func quantiles(b *testing.B, fn func(i int)) {
	took := make([]time.Duration, 0, b.N)
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		fn(i)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[0].Nanoseconds())/1e3, "us-min")
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "us-p50")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "us-p99")
}

func BenchmarkAddSnapshot(b *testing.B) {
	for _, boxes := range []int{1, 10_000} {
		b.Run(fmt.Sprint("sandboxes=", boxes), func(b *testing.B) {
			d := open(b)
			many(b, d, boxes)
			rec := must(d.Sandbox(b.Context(), "fork-0"))(b)
			quantiles(b, func(int) { snap(b, d, &rec, "apt-get install -y nginx") })
		})
	}
}

func BenchmarkIntent(b *testing.B) {
	d := open(b)
	quantiles(b, func(int) {
		ok(b, d.EndIntent(b.Context(),
			must(d.BeginIntent(b.Context(), "adopt", map[string]string{"layer": "0123456789abcdef"}))(b)))
	})
}

func BenchmarkUpdateSandbox(b *testing.B) {
	d := open(b)
	rec := box(b, d, "a", "")
	quantiles(b, func(i int) {
		ok(b, d.UpdateSandbox(b.Context(), rec.ID, func(r *Sandbox) error { r.Gen = i; return nil }))
	})
}

func BenchmarkMarkFinalized(b *testing.B) {
	d := open(b)
	rec := box(b, d, "a", "")
	r := snap(b, d, &rec, "x")
	quantiles(b, func(int) { ok(b, d.MarkFinalized(b.Context(), r.Layer, "sha256:x", "sha256:y", 1)) })
}

func BenchmarkCreateSandbox(b *testing.B) {
	d := open(b)
	quantiles(b, func(i int) { box(b, d, fmt.Sprint("box-", i), "") })
}

func BenchmarkChain2000(b *testing.B) {
	d := open(b)
	plain, merged := chain(b, d, 2000, false), chain(b, d, 2000, true)
	b.Run("lineage", func(b *testing.B) {
		quantiles(b, func(int) { must(d.Lineage(b.Context(), plain.Head))(b) })
	})
	b.Run("lineage,merged", func(b *testing.B) {
		quantiles(b, func(int) { must(d.Lineage(b.Context(), merged.Head))(b) })
	})
	b.Run("stack,merged", func(b *testing.B) {
		quantiles(b, func(int) { stack(b, d, merged.Head) })
	})
	b.Run("history", func(b *testing.B) {
		quantiles(b, func(int) { must(d.History(b.Context(), plain.ID))(b) })
	})
	b.Run("usage", func(b *testing.B) {
		quantiles(b, func(int) { must(d.Usage(b.Context(), plain.ID))(b) })
	})
}

func Benchmark10000(b *testing.B) {
	d := open(b)
	many(b, d, 10_000)
	b.Run("list", func(b *testing.B) {
		quantiles(b, func(int) {
			if got := must(d.Sandboxes(b.Context()))(b); len(got) != 10_001 {
				b.Fatal(len(got))
			}
		})
	})
	b.Run("find", func(b *testing.B) { quantiles(b, func(int) { must(d.Sandbox(b.Context(), "fork-5000"))(b) }) })
	b.Run("taken", func(b *testing.B) { quantiles(b, func(int) { must(d.Taken(b.Context(), "nobody"))(b) }) })
	b.Run("check", func(b *testing.B) { quantiles(b, func(int) { ok(b, d.Check(b.Context())) }) })
	b.Run("unreferenced", func(b *testing.B) { quantiles(b, func(int) { must(d.Unreferenced(b.Context(), ""))(b) }) })
	b.Run("usage", func(b *testing.B) {
		rec := must(d.Sandbox(b.Context(), "src"))(b)
		quantiles(b, func(int) { must(d.Usage(b.Context(), rec.ID))(b) })
	})
	b.Run("remove", func(b *testing.B) {
		quantiles(b, func(i int) {
			rec := box(b, d, fmt.Sprint("short-", i), "")
			must(d.DeleteSandbox(b.Context(), rec.ID))(b)
		})
	})
	b.Run("open", func(b *testing.B) {
		quantiles(b, func(int) { ok(b, must(Open(b.Context(), d.path))(b).Close()) })
	})
}

func BenchmarkOpenNew(b *testing.B) {
	dir := b.TempDir()
	quantiles(b, func(i int) { ok(b, must(Open(b.Context(), fmt.Sprint(dir, "/", i, ".db")))(b).Close()) })
}

package ledger

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// BenchmarkAppend appends one record at a time, by one caller and by eight.
func BenchmarkAppend(b *testing.B) {
	for _, callers := range []int{1, 8} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			l, _ := opened(b, b.TempDir(), Options{})
			took := make([][]time.Duration, callers)
			var wg sync.WaitGroup
			b.ResetTimer()
			for g := range callers {
				wg.Go(func() {
					for i := range b.N/callers + 1 {
						at := time.Now()
						if _, err := l.Append(context.Background(), draft(format.Sandbox(fmt.Sprintf("%012x", g)), i)); err != nil {
							b.Error(err)
						}
						took[g] = append(took[g], time.Since(at))
					}
				})
			}
			wg.Wait()
			all := slices.Concat(took...)
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-us")
		})
	}
}

// BenchmarkVerify verifies a million records of one sandbox in a log with another one's.
func BenchmarkVerify(b *testing.B) {
	l, _ := opened(b, b.TempDir(), Options{})
	const records, at = 1_000_000, 2000
	for i := 0; i < records; i += at {
		var ds []Draft
		for j := range at {
			ds = append(ds, draft(boxA, i+j))
		}
		if _, err := l.Append(context.Background(), append(ds, draft(boxB, i))...); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		verified(b, l.Reader, boxA, records)
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/million")
}

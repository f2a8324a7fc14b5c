//go:build linux && (amd64 || arm64)

package box_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/box/boxtest"
	"github.com/coppice-dev/coppice/internal/box/plan"
)

var tier = boxtest.Tier{Name: plan.TierProcess, Config: config}

// BenchmarkFloor is fork and exec alone.
func BenchmarkFloor(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStartTrueStop(b *testing.B) {
	for name, change := range map[string]func(*plan.Config){
		"all":      func(*plan.Config) {},
		"nocgroup": func(c *plan.Config) { c.NoCgroup = true },
		"noidmap":  func(c *plan.Config) { c.NoIDMap = true },
		"neither":  func(c *plan.Config) { c.NoCgroup, c.NoIDMap = true, true },
		"nethost":  func(c *plan.Config) { c.NoCgroup, c.NoIDMap, c.Net = true, true, plan.NetHost },
	} {
		b.Run(name, func(b *testing.B) {
			c := config(b)
			change(&c)
			ctx := context.Background()
			for b.Loop() {
				x, _, err := box.Start(ctx, c)
				if err != nil {
					b.Fatal(err)
				}
				s, err := x.Exec(ctx, wire.ExecRequest{Cmd: []string{"true"}})
				if err != nil {
					b.Fatal(err)
				}
				if r := boxtest.Collect(s); r.Exit.Code != 0 || r.Err != nil {
					b.Fatalf("%+v", r)
				}
				s.Close()
				b.StopTimer()
				if err := x.Stop(ctx, 0); err != nil {
					b.Fatal(err)
				}
				x.Close()
				b.StartTimer()
			}
		})
	}
}

func BenchmarkStop(b *testing.B) {
	c := config(b)
	ctx := context.Background()
	for b.Loop() {
		b.StopTimer()
		x, _, err := box.Start(ctx, c)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := x.Stop(ctx, 0); err != nil {
			b.Fatal(err)
		}
		x.Close()
	}
}

func BenchmarkExecTrue(b *testing.B) {
	x := tier.Start(b)
	for b.Loop() {
		if r := x.Do(b, wire.ExecRequest{Cmd: []string{"true"}}); r.Exit.Code != 0 {
			b.Fatalf("%+v", r)
		}
	}
}

func BenchmarkFreeze(b *testing.B) {
	for _, n := range []int{0, 1, 10, 300} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x := tier.Start(b)
			x.Sh(b, fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep 1000 >/dev/null 2>&1 & i=$((i+1)); done", n))
			for b.Loop() {
				f, err := x.Freeze(context.Background())
				if err != nil {
					b.Fatal(err)
				}
				if err := f.Thaw(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkMemory reports the proportional memory of an idle box.
func BenchmarkMemory(b *testing.B) {
	var boxes []*boxtest.Box
	for range 10 {
		boxes = append(boxes, tier.Start(b))
	}
	for b.Loop() {
		for _, x := range boxes {
			x.Sh(b, "ls -lR /etc")
		}
	}
	total, procs := 0, 0
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, n := range names {
		dir := filepath.Dir(n)
		cmd, _ := os.ReadFile(dir + "/cmdline")
		if !strings.HasPrefix(string(cmd), "coppice-") {
			continue
		}
		f, err := os.Open(dir + "/smaps_rollup")
		if err != nil {
			continue
		}
		for s := bufio.NewScanner(f); s.Scan(); {
			var kb int
			if _, err := fmt.Sscanf(s.Text(), "Pss: %d kB", &kb); err == nil {
				total, procs = total+kb, procs+1
			}
		}
		f.Close()
	}
	b.ReportMetric(float64(total)/float64(len(boxes)), "kB/box")
	b.ReportMetric(float64(procs)/float64(len(boxes)), "procs/box")
}

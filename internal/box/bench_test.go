//go:build linux && (amd64 || arm64)

package box_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

var tier = boxtest.Tier{Name: plan.TierProcess, Config: config}

// BenchmarkFloor measures fork and exec alone.
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
		"gate": func(c *plan.Config) {
			c.Tier, c.Journal, c.Phases = plan.TierSupervised, c.RunDir, []plan.Phase{phase(b, time.Time{})}
		},
		"gate that waits": func(c *plan.Config) {
			c.Tier, c.Journal, c.Net = plan.TierSupervised, c.RunDir, plan.NetOff
			c.Phases = []plan.Phase{phaseOf(b, time.Time{}, "version: 1\nnetwork: off")}
		},
	} {
		b.Run(name, func(b *testing.B) {
			c := config(b)
			change(&c)
			ctx := context.Background()
			for b.Loop() {
				x, _, err := box.Start(ctx, programtest.Programs(), c)
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
		x, _, err := box.Start(ctx, programtest.Programs(), c)
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

// BenchmarkLock runs a command alternately in a workspace without and with its lock, and reports the medians.
func BenchmarkLock(b *testing.B) {
	for _, cmd := range []string{"true", "python3 -c pass"} {
		b.Run(strings.Fields(cmd)[0], func(b *testing.B) {
			boxes := [2]*boxtest.Box{boxtest.Tier{Config: workspace}.Start(b), boxtest.Tier{Config: locked}.Start(b)}
			var took [2][]time.Duration
			for i := 0; b.Loop(); i++ {
				for j := range boxes {
					at := (i + j) % 2
					began := time.Now()
					if r := boxes[at].Do(b, wire.ExecRequest{Cmd: strings.Fields(cmd)}); r.Exit.Code != 0 {
						b.Fatalf("%+v", r)
					}
					took[at] = append(took[at], time.Since(began))
				}
			}
			for i, name := range []string{"open-us", "locked-us"} {
				slices.Sort(took[i])
				b.ReportMetric(float64(took[i][len(took[i])/2].Microseconds()), name)
			}
		})
	}
}

// BenchmarkBuild runs programs two at a time, as make(1) does, alternately in a box that records them and in one that
// does not. The median of the ratios is the cost of the record in time. The processor time of the box, init's included,
// is less affected by other load. "true" is the worst case: programs that do nothing.
func BenchmarkBuild(b *testing.B) {
	for _, c := range []struct {
		name, cmd string
		programs  int
	}{
		{"true", "/bin/true a.c -o a.o", 200},
		{"configure", "sed -n s/a/b/p /etc/services | grep -c x >/dev/null", 60},
		{"cc", "cc -O1 -c -o /dev/null /tmp/a.c", 10},
	} {
		b.Run(c.name, func(b *testing.B) {
			script := fmt.Sprintf("for j in 1 2; do (i=0; while [ $i -lt %d ]; do %s; i=$((i+1)); done) & done; wait",
				c.programs/2, c.cmd)
			var boxes [2]*boxtest.Box // without and with the record
			for i := range boxes {
				boxes[i] = tier.Start(b, func(c *plan.Config) { c.Trace = i == 1 })
				boxes[i].Sh(b, `printf '#include <stdio.h>\nint main(void) { return puts("hi"); }\n' > /tmp/a.c`)
				if r := boxes[i].Sh(b, c.cmd); r.Exit.Code > 1 {
					b.Skipf("needs %s: %s", strings.Fields(c.cmd)[0], r.Stderr)
				}
			}
			run := func(i int) float64 {
				start := time.Now()
				boxes[i].Sh(b, script)
				return float64(time.Since(start).Microseconds())
			}
			before := [2]float64{cpuTime(b, boxes[0]), cpuTime(b, boxes[1])}
			var ratios []float64
			for i := 0; b.Loop(); i++ {
				var took [2]float64
				took[i%2] = run(i % 2)
				took[1-i%2] = run(1 - i%2)
				ratios = append(ratios, took[1]/took[0])
			}
			slices.Sort(ratios)
			off, on := cpuTime(b, boxes[0])-before[0], cpuTime(b, boxes[1])-before[1]
			b.ReportMetric(off/float64(b.N*c.programs)*10_000, "cpu-us/run")
			b.ReportMetric(ratios[len(ratios)/2], "time-ratio")
			b.ReportMetric(on/off, "cpu-ratio")
		})
	}
}

// cpuTime returns the processor time of init and of all processes that it has reaped, in clock ticks.
func cpuTime(b *testing.B, x *boxtest.Box) (ticks float64) {
	s, err := x.Status(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	var child string // the child of any thread of the keeper
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.PID))
	for _, name := range threads {
		list, _ := os.ReadFile(name)
		child += string(list)
	}
	if child == "" {
		b.Skip("needs the children in /proc")
	}
	stat, err := os.ReadFile("/proc/" + strings.Fields(child)[0] + "/stat")
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')'):]))[12:16] { // utime to cstime
		n, _ := strconv.Atoi(f)
		ticks += float64(n)
	}
	return ticks
}

// BenchmarkDialPort connects to a listener in a box that accepts each connection and closes it.
func BenchmarkDialPort(b *testing.B) {
	if _, err := exec.LookPath("/usr/bin/python3"); err != nil {
		b.Skip("needs python3: it listens")
	}
	x := (boxtest.Tier{Config: config}).Start(b)
	s := x.Open(b, wire.ExecRequest{Cmd: []string{"/usr/bin/python3", "-u", "-c", `
import socket
s = socket.create_server(("127.0.0.1", 0), backlog=128)
print(s.getsockname()[1], flush=True)
while True:
    s.accept()[0].close()
`}})
	_ = s.SetDeadline(time.Time{})
	boxtest.WaitStarted(b, s)
	var port int
	if _, err := fmt.Sscan(boxtest.WaitOutput(b, s, "\n"), &port); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		c, err := x.DialPort(b.Context(), port)
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}

// BenchmarkRefusedCall measures a system call that is refused, with and without a report, and one that the filter
// examines and allows, in the same boxes.
func BenchmarkRefusedCall(b *testing.B) {
	for _, tell := range []bool{false, true} {
		for _, free := range []bool{false, true} {
			b.Run(fmt.Sprintf("told=%v/passes=%v", tell, free), func(b *testing.B) {
				const n = 100_000
				calls := tier.Refusals(b, tell)
				var all time.Duration
				for b.Loop() {
					all += calls(n, free)
				}
				b.ReportMetric(float64(all.Nanoseconds())/float64(b.N*n), "ns/call")
			})
		}
	}
}

// BenchmarkExecRecorded measures what recording programs costs a command.
func BenchmarkExecRecorded(b *testing.B) { execRecorded(b, tier) }

func execRecorded(b *testing.B, tier boxtest.Tier) {
	inTurns(b, tier, 1, func(x *boxtest.Box) boxtest.Result { return x.Do(b, wire.ExecRequest{Cmd: []string{"true"}}) })
}

// BenchmarkPrograms measures what recording one program costs, with a shell that starts one program after the other.
func BenchmarkPrograms(b *testing.B) { programsRecorded(b, tier) }

func programsRecorded(b *testing.B, tier boxtest.Tier) {
	const n = 300
	loop := fmt.Sprintf("i=0; while [ $i -lt %d ]; do /bin/true; i=$((i+1)); done", n)
	inTurns(b, tier, n, func(x *boxtest.Box) boxtest.Result { return x.Sh(b, loop) })
}

// inTurns measures do, which starts the given number of programs, alternately in two boxes, of which one records
// programs. It reports the median and the least time for each program.
func inTurns(b *testing.B, tier boxtest.Tier, programs int, do func(*boxtest.Box) boxtest.Result) {
	b.Helper()
	waits := func(c *plan.Config) { c.IdleAfter = -1 }
	boxes := []*boxtest.Box{tier.Start(b, waits), tier.Start(b, waits, func(c *plan.Config) { c.Trace = true })}
	var took [2][]time.Duration
	for b.Loop() {
		for i, x := range boxes {
			start := time.Now()
			if r := do(x); r.Exit.Code != 0 {
				b.Fatalf("%+v", r)
			}
			took[i] = append(took[i], time.Since(start)/time.Duration(programs))
		}
	}
	for i, name := range []string{"plain", "recorded"} {
		slices.Sort(took[i])
		b.ReportMetric(float64(took[i][len(took[i])/2].Microseconds()), "us/"+name)
		b.ReportMetric(float64(took[i][0].Microseconds()), "us-least/"+name)
	}
}

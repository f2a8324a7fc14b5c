package ledger

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// script uses a ledger in various ways, and returns the commands whose records were acknowledged, by sandbox. Errors
// do not stop it.
func script(l *Ledger, from int) map[format.Sandbox][]string {
	acked := map[format.Sandbox][]string{}
	scriptTo(l, from, func(id format.Sandbox, what string) { acked[id] = append(acked[id], what) })
	return acked
}

// scriptTo is script for a caller that must know at once what is acknowledged.
func scriptTo(l *Ledger, from int, ack func(id format.Sandbox, what string)) {
	ctx := context.Background()
	for i := from; i < from+12; i++ {
		id := []format.Sandbox{boxA, boxB}[i%2]
		drafts := []Draft{draft(id, i)}
		if size, ok := map[int]int{2: 1000, 3: 5000, 10: 0}[i-from]; ok {
			if name, err := l.WriteBlob(id, make([]byte, size)); err == nil {
				drafts = append(drafts, exitWith(id, i, name))
			}
		}
		if _, err := l.Append(ctx, drafts...); err == nil {
			ack(id, fmt.Sprint(i))
		}
		switch i - from {
		case 4:
			l.RotateKey(ctx)
		case 6:
			l.Archive(ctx, boxA, "web", time.Now().Add(time.Hour))
		case 8:
			l.Checkpoint(ctx)
		}
	}
}

// goesOn fails unless records can be appended for each sandbox.
func goesOn(t *testing.T, what string, l *Ledger, from int, acked map[format.Sandbox][]string) {
	t.Helper()
	for i, id := range []format.Sandbox{boxA, boxB} {
		if _, err := l.Append(context.Background(), draft(id, from+i)); err != nil {
			t.Fatalf("%s: afterwards: %v", what, err)
		}
		acked[id] = append(acked[id], fmt.Sprint(from+i))
	}
}

// holds fails unless the ledger has all acknowledged records, in order, with the captures that they name, and can be
// verified.
func holds(t *testing.T, what string, r *Ledger, acked map[format.Sandbox][]string) {
	t.Helper()
	for id, want := range acked {
		got := execs(t, r, id, Filter{})
		for rec, err := range r.Read(t.Context(), id, Filter{Kinds: []format.Kind{format.KindExit}}) {
			if err == nil {
				_, err = r.ReadBlob(id, rec.Body.(*format.Exit).Output[0].Blob)
			}
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		for _, one := range got {
			if len(want) > 0 && want[0] == one {
				want = want[1:]
			}
		}
		if len(want) > 0 {
			t.Errorf("%s: of %s, %q were acknowledged and are missing or not in order: %q", what, id, want, got)
		}
	}
	for _, id := range []format.Sandbox{boxA, boxB, format.Host} {
		if _, err := r.Verify(context.Background(), id, nil, nil); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestWriteFailure_LosesNothing lets each write fail, once or permanently as on a full disk:
// nothing acknowledged is lost, and the ledger continues when the disk works again, both
// without and after reopening it.
func TestWriteFailure_LosesNothing(t *testing.T) {
	t.Parallel()
	o := Options{SegmentBytes: 700, IntakeBytes: 1500}
	first, step := looptest.Sample(t, 7)
	for _, c := range []struct {
		errno syscall.Errno
		stay  bool
	}{{syscall.EIO, false}, {syscall.ENOSPC, true}} {
		for k := 1 + first; ; k += step {
			what := fmt.Sprintf("call %d fails with %v, stay %v", k, c.errno, c.stay)
			dir := inMemory(t)
			faulty := &vfs.Faulty{FS: vfs.OS()}
			o.FS = faulty
			faulty.FailAt(k, c.errno, c.stay)
			l, _, err := Open(dir, o)
			acked := map[format.Sandbox][]string{}
			if err == nil {
				acked = script(l, 0)
			}
			reached := faulty.Failed()
			faulty.FailAt(0, 0, false)
			if err == nil {
				goesOn(t, what, l, 100, acked)
				holds(t, what, l, acked)
				if err := l.Close(); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
			}
			again, _, err := Open(dir, o)
			if err != nil {
				t.Fatalf("%s: opened again: %v", what, err)
			}
			goesOn(t, what, again, 200, acked)
			holds(t, what+", opened again", again, acked)
			again.Close()
			if t.Failed() || !reached {
				t.Logf("%d calls", k)
				break
			}
			os.RemoveAll(dir)
		}
	}
}

// crash is the state of a ledger after a crash, and what was acknowledged before.
type crash struct {
	what, dir string
	acked     map[format.Sandbox][]string
}

// crashes opens the ledger in a directory, which may be new, and calls fn with it. It returns the states after a
// crash before each of the calls that all this makes.
func crashes(
	t *testing.T, dir string, acked map[format.Sandbox][]string, how func(k int) vfs.Crash,
	fn func(l *Ledger, ack func(format.Sandbox, string)),
) (all []crash) {
	t.Helper()
	var mu sync.Mutex
	disk, to := vfs.NewCrashable(dir), inMemory(t)
	disk.OnCall = func(op vfs.Op) {
		mu.Lock() // what is acknowledged meanwhile counts for the next crash
		defer mu.Unlock()
		one := crash{acked: map[format.Sandbox][]string{}}
		for id, some := range acked {
			one.acked[id] = slices.Clone(some)
		}
		as := how(len(all))
		one.what = fmt.Sprintf("a crash before call %d, %s, which leaves %+v", len(all), op, as)
		one.dir = filepath.Join(to, fmt.Sprint(len(all)))
		if err := disk.CrashClone(one.dir, as); err != nil {
			t.Errorf("%s: %v", one.what, err)
			return
		}
		all = append(all, one)
	}
	l, _, err := Open(dir, Options{FS: disk, SegmentBytes: 700, IntakeBytes: 1500})
	if err != nil {
		t.Fatal(err)
	}
	fn(l, func(id format.Sandbox, what string) {
		mu.Lock()
		defer mu.Unlock()
		acked[id] = append(acked[id], what)
	})
	if err := errors.Join(l.Close(), disk.Close()); err != nil {
		t.Fatal(err)
	}
	return all
}

// survives fails unless the ledger has all records that were acknowledged before a crash, and can be appended to.
func (c crash) survives(t *testing.T) {
	t.Helper()
	for from := range 2 {
		l, report, err := Open(c.dir, Options{SegmentBytes: 700, IntakeBytes: 1500})
		if err != nil {
			t.Fatalf("%s: open: %v; %+v", c.what, err, report)
		}
		goesOn(t, c.what, l, 100*(from+1), c.acked)
		holds(t, c.what, l, c.acked)
		if err := l.Close(); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
	}
	if err := os.RemoveAll(c.dir); err != nil {
		t.Fatal(err)
	}
}

// TestLedger_CrashKeepsAcknowledgedRecords lets the process die at any time, with or without a power loss: all
// acknowledged records are kept, and each other one is complete or missing. It may die again while it repairs the
// ledger after the first crash.
func TestLedger_CrashKeepsAcknowledgedRecords(t *testing.T) {
	t.Parallel()
	seeds := 3
	if looptest.Race || testing.Short() {
		seeds = 1
	}
	for name, how := range map[string]func(seed int) vfs.Crash{
		"killed":          func(int) vfs.Crash { return vfs.Kill },
		"nothing is left": func(int) vfs.Crash { return vfs.Crash{} },
		"some is left":    func(seed int) vfs.Crash { return vfs.PowerLoss(uint64(seed)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, step := looptest.Sample(t, 11)
			for seed := range seeds {
				all := crashes(t, inMemory(t), map[format.Sandbox][]string{}, func(k int) vfs.Crash { return how(1000*seed + k) },
					func(l *Ledger, ack func(format.Sandbox, string)) {
						scriptTo(l, 0, ack)
					})
				t.Logf("seed %d: %d crashes", seed, len(all))
				for k := first; k < len(all); k += step {
					if k/step%13 == 12 {
						again := crashes(t, all[k].dir, all[k].acked, how, func(*Ledger, func(format.Sandbox, string)) {})
						for i := 0; i < len(again); i += step {
							again[i].what = all[k].what + "; then " + again[i].what
							again[i].survives(t)
						}
					}
					all[k].survives(t)
				}
			}
		})
	}
}

// TestLargeCapture_IsAtomic covers a capture that is too large to be stored with its record: it is written completely
// or not at all, whichever write fails, and no record names a missing one.
func TestLargeCapture_IsAtomic(t *testing.T) {
	t.Parallel()
	for k := 1; ; k++ {
		what := fmt.Sprintf("call %d fails", k)
		dir, faulty := inMemory(t), &vfs.Faulty{FS: vfs.OS()}
		l, _ := opened(t, dir, Options{FS: faulty})
		faulty.FailAt(k, syscall.EIO, false)
		name, err := l.WriteBlob(boxA, make([]byte, maxRiding+1))
		if err == nil {
			_, err = l.Append(context.Background(), draft(boxA, 0), exitWith(boxA, 0, name))
		}
		reached := faulty.Failed()
		faulty.FailAt(0, 0, false)
		acked := map[format.Sandbox][]string{boxA: nil}
		if err == nil {
			acked[boxA] = []string{"0"}
		}
		goesOn(t, what, l, 100, acked)
		holds(t, what, l, acked)
		l.Close()
		again, _ := opened(t, dir, Options{})
		holds(t, what+", opened again", again, acked)
		if !reached {
			break
		}
	}
}

// inMemory returns a directory where flushing takes no time, if there is one: failures are injected, and the medium
// is not tested.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "coppice-ledger-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// copied copies a ledger as it is on the disk.
func copied(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestIntake_ReportsTornTail truncates an intake at each byte: all complete batches are read,
// and the rest is set aside and reported.
func TestIntake_ReportsTornTail(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := opened(t, dir, Options{})
	appended(t, l, draft(boxA, 0))
	l.Checkpoint(t.Context())
	live := copied(t, dir)
	for i := 1; i < 4; i++ {
		appended(t, l, draft(boxA, i), draft(boxB, i))
	}
	intake, err := os.ReadFile(filepath.Join(dir, fileIntake))
	if err != nil {
		t.Fatal(err)
	}
	batches, end, err := parseIntake(intake)
	if err != nil || end != len(intake) || len(batches) != 3 {
		t.Fatal(end, err)
	}
	for n := 0; n <= len(intake); n++ {
		whole, end, err := parseIntake(intake[:n])
		if err != nil || end > n || len(whole) < len(batches) && n == len(intake) {
			t.Fatal(n, end, err)
		}
		if n%89 != 0 && end != n && end != n-1 && n+1 != len(intake) {
			continue // from the disk as well, but only some of them, and those at borders
		}
		at := copied(t, live)
		if err := os.WriteFile(filepath.Join(at, fileIntake), intake[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		again, report := opened(t, at, Options{})
		if report.Mended != 2*len(whole) || (len(report.Aside) == 1) != (end < n) {
			t.Fatalf("cut at %d: %+v", n, report)
		}
		if end < n {
			kept, err := os.ReadFile(filepath.Join(at, report.Aside[0]))
			if err != nil || !bytes.Equal(kept, intake[end:n]) {
				t.Fatalf("cut at %d: kept %q, %v", n, kept, err)
			}
		}
		verified(t, again.Reader, boxA, int64(1+len(whole)))
		appended(t, again, draft(boxA, 9))
		verified(t, again.Reader, boxA, int64(2+len(whole)))
		again.Close()
	}
	damaged := bytes.Clone(intake)
	damaged[10] ^= 1
	if _, _, err := parseIntake(damaged); err == nil {
		t.Error("damage before the tail was mistaken for a torn tail")
	}
}

var child = flag.String("ledger-child", "", "append to the ledger in this directory until killed")

func TestMain(m *testing.M) {
	flag.Parse()
	if *child != "" {
		if err := load(*child, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// load appends in several goroutines until it is killed, and writes down what is acknowledged.
func load(dir string, to io.Writer) error {
	l, _, err := Open(dir, Options{SegmentBytes: 4 << 10, IntakeBytes: 16 << 10})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for g := range 4 {
		wg.Go(func() {
			id := []format.Sandbox{boxA, boxB}[g%2]
			for i := 0; ; i++ {
				name, err := l.WriteBlob(id, fmt.Appendf(nil, "output %d %d", g, i))
				var rs []format.Record
				if err == nil {
					rs, err = l.Append(context.Background(), draft(id, i), exitWith(id, i, name))
				}
				if err != nil {
					errs <- err
					return
				}
				mu.Lock()
				fmt.Fprintf(to, "%s %d\n", id, rs[1].Seq)
				mu.Unlock()
				if g == 0 && i%37 == 36 {
					l.RotateKey(context.Background())
				}
				if g == 1 && i%29 == 28 {
					l.Archive(context.Background(), id, "web", time.Now())
				}
			}
		})
	}
	wg.Wait()
	return <-errs
}

// TestLedger_KillKeepsAcknowledgedRecords kills the process at any moment: all records that it acknowledged are kept.
func TestLedger_KillKeepsAcknowledgedRecords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	last := map[string]int64{}
	for range 12 {
		cmd := exec.Command("/proc/self/exe", "-ledger-child", dir)
		cmd.Args[0] = os.Args[0]
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		after := rand.IntN(150)
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			if n == after {
				cmd.Process.Kill()
			}
			id, seq, _ := strings.Cut(lines.Text(), " ")
			at, err := strconv.ParseInt(seq, 10, 64)
			if err != nil {
				break // the line that it was writing when it was killed
			}
			last[id] = max(last[id], at)
		}
		var died *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &died) || died.ExitCode() != -1 {
			t.Fatalf("the child exited before it was killed: %v", err)
		}
		l, report, err := Open(dir, Options{SegmentBytes: 4 << 10})
		if err != nil {
			t.Fatal(err)
		}
		for id, seq := range last {
			p, err := l.Verify(t.Context(), format.Sandbox(id), nil, nil)
			if err != nil || p.Records < seq {
				t.Fatalf("%+v, %v; %d were acknowledged; %+v", p, err, seq, report)
			}
			got := execs(t, l, format.Sandbox(id), Filter{Kinds: []format.Kind{format.KindExec}})
			if !slices.Contains(got, "0") {
				t.Fatal(len(got))
			}
		}
		holds(t, "killed", l, map[format.Sandbox][]string{boxA: nil, boxB: nil})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// full is a file system on which nothing can be created while it is full.
type full struct {
	vfs.FS
	is atomic.Bool
}

func (f *full) Create(dir int, name string, mode uint32) (int, error) {
	if f.is.Load() {
		return -1, unix.ENOSPC
	}
	return f.FS.Create(dir, name, mode)
}

func (f *full) Mkdir(dir int, name string, mode uint32) error {
	if err := f.FS.Mkdir(dir, name, mode); err != nil || !f.is.Load() {
		return err
	}
	return errors.Join(unix.ENOSPC, f.Rmdir(dir, name))
}

// TestIntake_TornTailWaitsForDiskSpace opens a torn intake on a full disk: acknowledged
// records can be read, and nothing is appended until there is space to set aside the torn end.
func TestIntake_TornTailWaitsForDiskSpace(t *testing.T) {
	t.Parallel()
	dir, disk := t.TempDir(), &full{FS: vfs.OS()}
	l, _ := opened(t, dir, Options{FS: disk})
	appended(t, l, draft(boxA, 1))
	if _, err := l.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	appended(t, l, draft(boxA, 2))
	torn := copied(t, dir)
	name := filepath.Join(torn, fileIntake)
	intake, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	const tail = "R 1 700 {torn"
	if err := os.WriteFile(name, append(intake, tail...), 0o600); err != nil {
		t.Fatal(err)
	}
	disk.is.Store(true)
	again, report := opened(t, torn, Options{FS: disk})
	if !report.Torn || len(report.Aside) != 0 || report.Mended != 1 {
		t.Errorf("%+v", report)
	}
	for range 2 {
		if _, err := again.Append(t.Context(), draft(boxA, 3)); !fault.Is(err, fault.NoSpace) {
			t.Errorf("appended behind the torn tail: %v", err)
		}
		if _, err := again.Checkpoint(t.Context()); !fault.Is(err, fault.NoSpace) {
			t.Errorf("folded the torn tail: %v", err)
		}
		if last, err := again.Last(t.Context(), boxA); err != nil || last != 2 {
			t.Errorf("%d, %v", last, err)
		}
		if got := execs(t, again, boxA, Filter{}); !slices.Equal(got, []string{"1", "2"}) {
			t.Errorf("%q", got)
		}
		verified(t, again.Reader, boxA, 2)
	}
	disk.is.Store(false)
	appended(t, again, draft(boxA, 3))
	verified(t, again.Reader, boxA, 3)
	kept, err := os.ReadFile(name + ".torn-1")
	if err != nil || string(kept) != tail {
		t.Errorf("%q, %v", kept, err)
	}
}

// TestIntake_AppendsOnFullDisk checks that on a full disk the intake takes records that cannot be placed elsewhere,
// also across a restart.
func TestIntake_AppendsOnFullDisk(t *testing.T) {
	t.Parallel()
	dir, disk := t.TempDir(), &full{FS: vfs.OS()}
	l, _ := opened(t, dir, Options{FS: disk})
	appended(t, l, draft(boxA, 1))
	disk.is.Store(true)
	appended(t, l, draft(boxB, 1), draft(boxA, 2))
	appended(t, l, draft(boxB, 2))
	if got := execs(t, l, boxB, Filter{}); len(got) != 0 {
		t.Fatalf("there was room for %q", got)
	}
	verified(t, l.Reader, boxB, 2)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, _ = opened(t, dir, Options{FS: disk})
	appended(t, l, draft(boxB, 3))
	disk.is.Store(false)
	appended(t, l, draft(boxB, 4))
	if _, err := l.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := execs(t, l, boxB, Filter{}); !slices.Equal(got, []string{"1", "2", "3", "4"}) {
		t.Errorf("%q", got)
	}
	verified(t, l.Reader, boxA, 2)
	verified(t, l.Reader, boxB, 4)
}

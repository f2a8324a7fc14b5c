package repo

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkCheckout compares a sandbox's checkout of a large repository with git's own: go test ./internal/repo
// -run - -bench Checkout -benchtime 3x
func BenchmarkCheckout(b *testing.B) {
	l, r, _ := large(b)
	head := r.Head.Commit
	for i := range 100 {
		l.file(l.top, "d00/e00/new"+string(rune('a'+i%26))+string(rune('a'+i/26)), "new\n")
	}
	next := l.commit(l.top, "next")
	l.run(l.top, "repack", "-adq")
	// Nothing is removed in between: ext4 searches for inodes among those freed recently.
	var out string
	fresh := func() { out = b.TempDir() }
	each := func(name string, before, do func()) {
		b.Run(name, func(b *testing.B) {
			var cpu time.Duration
			for range b.N {
				b.StopTimer()
				before()
				cpu -= busy(b)
				b.StartTimer()
				do()
				b.StopTimer()
				cpu += busy(b)
				b.StartTimer()
			}
			b.ReportMetric(cpu.Seconds()*1e3/float64(b.N), "cpu-ms/op")
		})
	}
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	var got, delta CheckedOut
	each("checkout", fresh, func() {
		root := l.root(out)
		var err error
		got, err = r.Checkout(ctx, Checkout{Commit: head, To: root})
		must(err)
		must(root.Close())
	})
	each("git-worktree-add", fresh, func() { l.run(l.top, "worktree", "add", "-q", "--detach", out, string(head)) })
	var index []byte
	each("index", fresh, func() {
		root := l.root(out)
		must(r.Index(ctx, Index{Written: got, To: root}))
		var err error
		index, err = root.ReadFile("index")
		must(err)
	})
	each("checkout-100-files", fresh, func() {
		none := func(string) error { return nil }
		var err error
		delta, err = r.Checkout(ctx, Checkout{Commit: next, From: head, To: l.root(out), Remove: none, Hide: none})
		must(err)
	})
	each("index-100-files", fresh, func() { must(r.Index(ctx, Index{Written: delta, Before: index, To: l.root(out)})) })
	each("inside", fresh, func() {
		l.inside(r, Inside{Branch: fix, Commit: head, To: l.root(out)})
	})
	b.Run("status", func(b *testing.B) {
		fresh()
		s := &stack{l: l, r: r, dir: out}
		written := s.lay(head)
		git := l.root(b.TempDir())
		must(r.Index(ctx, Index{Written: written, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), To: git}))
		l.inside(r, Inside{Branch: fix, Commit: head, To: git})
		must(os.Rename(git.Name(), filepath.Join(out, ".git")))
		for b.Loop() {
			if s := l.run(out, "status", "--porcelain"); s != "" {
				b.Fatal(s)
			}
		}
	})
	each("uncommitted", func() { l.file(l.top, "d00/e00/more", "more\n") }, func() {
		_, _, err := r.WorkTree(ctx)
		must(err)
	})
}

// busy returns the processor time of this process and its children, which is more reliable than the clock on a
// busy machine.
func busy(b *testing.B) time.Duration {
	b.Helper()
	var sum time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}

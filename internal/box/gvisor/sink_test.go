//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	pb "gvisor.dev/gvisor/pkg/sentry/seccheck/points/points_go_proto"
	"pgregory.net/rapid"
)

// TestSink_CountsDroppedEvents checks that no process waits for a slow reader, and that events without room are
// counted.
func TestSink_CountsDroppedEvents(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := newSink(nil)
	written := make(chan struct{})
	go func() { defer close(written); s.write(w) }()
	const n = 4 * maxPending
	for i := range n {
		err := s.Execve(context.Background(), seccheck.FieldSet{},
			&pb.ExecveInfo{ContextData: &pb.ContextData{ThreadGroupId: int32(i)}, BinaryPath: strings.Repeat("x", 200)})
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Clone(context.Background(), seccheck.FieldSet{}, &pb.CloneInfo{CreatedThreadGroupId: int32(i)})
	}
	if lost := s.Status().DroppedCount; lost < n/2 {
		t.Errorf("%d events were dropped", lost)
	}
	s.mu.Lock()
	if len(s.pending) > maxPending+1 || s.bytes > maxPendingBytes+8192 {
		t.Errorf("%d events are held, %d bytes", len(s.pending), s.bytes)
	}
	s.mu.Unlock()
	told, dropped, marks := 0, 0, 0
	for marks == 0 {
		b, err := readBatch(r)
		if err != nil {
			t.Fatal(err)
		}
		dropped += int(b.Dropped)
		for _, e := range b.Events {
			switch e.Kind {
			case eventBegan:
				told++
			case eventMark:
				marks++
			}
		}
	}
	if told+dropped != n {
		t.Errorf("%d reported and %d counted as dropped, of %d", told, dropped, n)
	}
	r.Close() // write returns once its reader has closed
	_ = s.Status()
	<-written
}

func TestSink_IgnoresThreads(t *testing.T) {
	t.Parallel()
	s := newSink(nil)
	_ = s.Clone(context.Background(), seccheck.FieldSet{},
		&pb.CloneInfo{Flags: unix.CLONE_THREAD | unix.CLONE_VM, CreatedThreadGroupId: 4})
	if b := s.take(); len(b.Events) != 0 {
		t.Errorf("%+v", b)
	}
}

// TestArguments_AreTruncated checks that the first bytes of the arguments are kept, each complete argument with its
// NUL, and that the others are counted.
func TestArguments_AreTruncated(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		argv := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, 3000), func(n int) string { return strings.Repeat("y", n) }), 0,
			6).Draw(t, "argv")
		var whole []byte
		for _, a := range argv {
			whole = append(append(whole, a...), 0)
		}
		args, cut := arguments(argv)
		if len(args) > 4096 || !bytes.HasPrefix(whole, args) || int64(len(whole)-len(args)) != cut || cut > 0 &&
			len(args) != 4096 {
			t.Fatalf("%d bytes, %d cut, of %d", len(args), cut, len(whole))
		}
	})
}

func BenchmarkSink(b *testing.B) {
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	go func() {
		for {
			if _, err := readBatch(r); err != nil {
				return
			}
		}
	}()
	s := newSink(nil)
	go s.write(w)
	info := &pb.ExecveInfo{ContextData: &pb.ContextData{ThreadGroupId: 7, ParentThreadGroupId: 5, Cwd: "/work"},
		BinaryPath: "/usr/bin/true", Argv: []string{"/bin/true", "1"}}
	b.ReportAllocs()
	for b.Loop() {
		_ = s.Clone(context.Background(), seccheck.FieldSet{}, &pb.CloneInfo{CreatedThreadGroupId: 7})
		_ = s.Execve(context.Background(), seccheck.FieldSet{}, info)
		_ = s.ExitNotifyParent(context.Background(), seccheck.FieldSet{},
			&pb.ExitNotifyParentInfo{ContextData: info.ContextData})
	}
}

//go:build linux && (amd64 || arm64)

package gvisor

import (
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/fd"
	sentry "gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	pb "gvisor.dev/gvisor/pkg/sentry/seccheck/points/points_go_proto"

	"github.com/coppice-dev/coppice/internal/box/execs"
	"github.com/coppice-dev/coppice/internal/box/refusals"
	"github.com/coppice-dev/coppice/internal/box/seccomp"
	"github.com/coppice-dev/coppice/internal/plan"
)

// The name by which the kernel's process knows the sink, and that of the refusals.Tally, which is passed as another
// sink.
const (
	sinkName  = "coppice"
	tallyName = "coppice-tally"
)

// session asks the kernel to report the exits of processes to a sink and, if programs are recorded, new processes and
// the programs that they execute. It also specifies how calls are answered.
func session(g plan.Guest) seccheck.SessionConfig {
	points := []seccheck.PointConfig{
		{Name: "sentry/exit_notify_parent", ContextFields: []string{"group_id", "parent_thread_group_id"}},
		{Name: "sentry/task_exit"},
	}
	if g.Trace {
		points = append(points,
			seccheck.PointConfig{Name: "sentry/clone", ContextFields: []string{"group_id"}},
			seccheck.PointConfig{Name: "sentry/execve", ContextFields: []string{"group_id", "parent_thread_group_id", "cwd"}})
	}
	sinks := []seccheck.SinkConfig{{Name: sinkName, Config: map[string]any{"emulate": g.Emulate, "netlink": g.Netlink,
		"files": g.Denials, "hidden": g.Hidden}}}
	if g.Tell {
		sinks = append([]seccheck.SinkConfig{{Name: tallyName}}, sinks...)
	}
	return seccheck.SessionConfig{Name: seccheck.DefaultSessionName, Points: points, Sinks: sinks}
}

// registerSinks registers the sinks in this process, which becomes the kernel and answers calls with c.
func registerSinks(c *calls) {
	seccheck.RegisterSink(
		seccheck.SinkDesc{Name: tallyName, New: func(_ map[string]any, of *fd.FD) (seccheck.Sink, error) {
			if of == nil {
				return nil, unix.EBADF
			}
			defer of.Close() //nolint:errcheck // it was mapped
			t, err := refusals.MapTally(of.FD())
			if err != nil {
				return nil, err
			}
			c.refusals.Store(refusals.NewSummary(t))
			return tallySink{}, nil
		}})
	seccheck.RegisterSink(
		seccheck.SinkDesc{Name: sinkName, New: func(config map[string]any, to *fd.FD) (seccheck.Sink, error) {
			if to == nil {
				return nil, unix.EBADF
			}
			emulate, _ := config["emulate"].(bool)
			netlink, _ := config["netlink"].(bool)
			c.answerAs(emulate, seccomp.Options{Netlink: netlink})
			if files, _ := config["files"].(bool); files {
				f := &fileCalls{hidden: hiddenOf(config["hidden"])}
				c.files.Store(f)
			}
			s := newSink(c.refusals.Load())
			go s.write(to)
			return s, nil
		}})
}

// tallySink receives no events.
type tallySink struct{ seccheck.SinkDefaults }

// Name returns the sink's name.
func (tallySink) Name() string { return tallyName }

// Bounds of the events that the conductor has not read yet. Further ones are only counted.
const (
	maxPending      = 16 << 10
	maxPendingBytes = 4 << 20
)

// gather is how long events wait for further ones, unless the conductor is waiting.
const gather = 50 * time.Millisecond

// sink queues and writes events of the kernel's tasks. A task may hold locks of the kernel, so it never waits for the
// sink.
type sink struct {
	seccheck.SinkDefaults
	some    chan struct{}     // signals that there are events
	now     chan struct{}     // signals that the events must not wait for further ones
	refused *refusals.Summary // nil if refusals are not reported

	mu      sync.Mutex
	pending []event // guarded by mu
	bytes   int     // guarded by mu; size of pending
	dropped uint64  // guarded by mu; events dropped since the last batch
	lost    uint64  // guarded by mu; events dropped in total
}

func newSink(refused *refusals.Summary) *sink {
	return &sink{some: make(chan struct{}, 1), now: make(chan struct{}, 1), refused: refused}
}

// Name returns the sink's name.
func (*sink) Name() string { return sinkName }

// Status queues a mark, which follows all events from before the call.
func (s *sink) Status() seccheck.SinkStatus {
	s.add(event{Kind: eventMark}, true)
	s.mu.Lock()
	defer s.mu.Unlock()
	return seccheck.SinkStatus{DroppedCount: s.lost}
}

// Clone is called before a new task runs.
func (s *sink) Clone(_ context.Context, _ seccheck.FieldSet, info *pb.CloneInfo) error {
	if info.GetFlags()&unix.CLONE_THREAD == 0 {
		s.add(event{Kind: eventCloned, PID: int(info.GetCreatedThreadGroupId()),
			Parent: int(info.GetContextData().GetThreadGroupId())}, false)
	}
	return nil
}

// Execve is called when a program is loaded. After that only the exit of the process can prevent its execution.
func (s *sink) Execve(ctx context.Context, _ seccheck.FieldSet, info *pb.ExecveInfo) error {
	d := info.GetContextData()
	e := event{Kind: eventBegan, PID: int(d.GetThreadGroupId()), Parent: int(d.GetParentThreadGroupId()),
		At: time.Now().UnixNano(), Exe: path(file(ctx, info.GetBinaryPath())), Dir: path(d.GetCwd())}
	e.Args, e.Cut = arguments(info.GetArgv())
	s.add(e, false)
	return nil
}

// ExitNotifyParent is called when a process has exited, before its parent can learn of it.
func (s *sink) ExitNotifyParent(_ context.Context, _ seccheck.FieldSet, info *pb.ExitNotifyParentInfo) error {
	d := info.GetContextData()
	s.add(event{Kind: eventEnded, PID: int(d.GetThreadGroupId()), At: time.Now().UnixNano(),
		Status: uint32(info.GetExitStatus())}, d.GetParentThreadGroupId() == 1)
	return nil
}

// TaskExit is called when a thread exits. It replaces ExitNotifyParent for a process that is traced by its own parent,
// whose exit the kernel does not report there.
func (s *sink) TaskExit(ctx context.Context, _ seccheck.FieldSet, info *pb.TaskExit) error {
	t := sentry.TaskFromContext(ctx)
	if t == nil || t.Tracer() == nil {
		return nil
	}
	if g := t.ThreadGroup(); g.Leader() == t {
		s.add(event{Kind: eventEnded, PID: int(g.ID()), At: time.Now().UnixNano(), Status: uint32(info.GetExitStatus())},
			false)
	}
	return nil
}

// file returns the name of the executed file. For a file that is executed by a descriptor, it looks up the descriptor,
// if no other task shares the descriptors and could replace it; otherwise it returns the name as it is.
func file(ctx context.Context, name string) string {
	rest, ok := strings.CutPrefix(name, "/dev/fd/")
	number, below, _ := strings.Cut(rest, "/")
	n, err := strconv.ParseInt(number, 10, 32)
	t := sentry.TaskFromContext(ctx)
	if !ok || err != nil || t == nil || t.FDTable().ReadRefs() != 1 {
		return name
	}
	f := t.GetFile(int32(n))
	if f == nil {
		return name
	}
	defer f.DecRef(t)
	if name = f.MappedName(t); below != "" {
		name += "/" + below
	}
	return name
}

// path returns as much of a path as is kept.
func path(p string) []byte { return []byte(p[:min(len(p), execs.MaxProgramPath)]) }

// arguments returns as much of a program's arguments as is kept, and how many bytes were cut.
func arguments(argv []string) (args []byte, cut int64) {
	for _, a := range argv {
		room := execs.MaxProgramArgs - len(args)
		args = append(args, a[:min(len(a), room)]...)
		if len(a) < room {
			args = append(args, 0)
		}
		cut += max(0, int64(len(a)+1-room))
	}
	return args, cut
}

// add queues an event. now says that a reader is waiting for it. Events without room are counted, except for clones,
// which are not reported, and marks, for which there is always room.
func (s *sink) add(e event, now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (len(s.pending) >= maxPending || s.bytes >= maxPendingBytes) && e.Kind != eventMark {
		if e.Kind != eventCloned {
			s.dropped++
			s.lost++
		}
		return
	}
	s.pending = append(s.pending, e)
	s.bytes += e.size()
	wake(s.some)
	if now || len(s.pending) == maxPending/2 || s.bytes >= maxPendingBytes/2 {
		wake(s.now)
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// write writes queued events until the reader closes.
func (s *sink) write(to io.Writer) {
	for {
		select {
		case <-s.some:
			rest := time.NewTimer(gather)
			select {
			case <-s.now:
			case <-s.refused.Due():
			case <-rest.C:
			}
			rest.Stop()
		case <-s.refused.Due():
		}
		for {
			b := s.take()
			if len(b.Events) == 0 && b.Dropped == 0 && b.Refused == nil {
				break
			}
			if writeBatch(to, b) != nil {
				return
			}
		}
	}
}

// take removes a batch from the queue. It includes the calls that were refused before one of its events was queued.
func (s *sink) take() (b batch) {
	b = s.takeEvents()
	if s.refused == nil {
		return b
	}
	if r := s.refused.Take(time.Now()); !r.Empty() {
		b.Refused = &r
	}
	return b
}

func (s *sink) takeEvents() (b batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, size := 0, 0
	for n < len(s.pending) && size < maxBatch {
		size += s.pending[n].size()
		n++
	}
	b.Events, s.pending = s.pending[:n:n], s.pending[n:]
	s.bytes -= size
	if len(s.pending) == 0 {
		s.pending = nil
	}
	b.Dropped, s.dropped = s.dropped, 0
	return b
}

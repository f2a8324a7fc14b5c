// Package lineapi implements the line protocol: one JSON object per line as a request, one or more lines as the
// answer, over the Unix socket of one sandbox. Clients are harnesses in any language, outside, and processes in the
// sandbox itself, inside. Only the daemon imports it; it imports client/wire, timeline and fault.
//
// Requests of one connection are carried out in order; connections are independent. Every answer ends in a line with
// "ok":true, or with "error" and an optional "hint"; "kind" is to branch on. Only exec has lines before that one. A
// request that was read is carried out even if the client has disconnected; a tournament, a show and a diff are
// cancelled with their client. A truncated list has "truncated":true: inside a sandbox the limit is much lower than
// outside.
//
//	op               in                    out                            least
//	head                                   head                           Read
//	log                                    nodes, head, truncated         Read
//	branches                               nodes, head, truncated         Read
//	show             node                  parent, changes, truncated     Read
//	diff             a, b (the present),   changes, truncated             Read
//	                 paths
//	tag                                    tags                           Read
//	tag              name                  node                           Read
//	mark             phase, label          node, head                     Read
//	tag              name, ref             node                           Rewind
//	commit           message               node, head                     Rewind
//	checkout, fork   node, in_place        head                           Rewind
//	exec             cmd                   stdout, stderr, dropped ...,   Owner
//	                                       exit, node, head
//	spawn            cmd                   pid, log                       Owner
//	ps                                     procs                          Owner
//	kill             pid                                                  Owner
//	delete           node                  head                           Owner
//	tournament       base, test,           branches, winner,              Owner
//	                 candidates ...        winner_node, head
//	gc                                     removed                        Owner
//	retain           keep (30)             dropped                        Owner
//
// With Rewind, a checkout is always in place: the requesting process is among those that a checkout would stop.
package lineapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/admission"
	"github.com/coppice-dev/coppice/internal/limit"
)

// Engine is the engine as the operations need it. A sandbox is named by its ID. Every method is safe for concurrent
// use; errors carry a fault.Kind.
type Engine interface {
	// Exec is that of httpapi.Commands.
	Exec(ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error)
	Head(ctx context.Context, name string) (string, error)
	Snapshots(ctx context.Context, name string) (wire.LogResult, error)
	Branches(ctx context.Context, name string) (wire.BranchesResult, error)
	// ShowSome is Show with at most that many changes; 0 is as many as one answer holds.
	ShowSome(ctx context.Context, name, ref string, most int) (wire.ShowResult, error)
	Diff(ctx context.Context, name string, req wire.DiffRequest) (wire.DiffResult, error)
	Commit(ctx context.Context, name, message string) (wire.CommitResult, error)
	// Checkout goes to a snapshot. In place, processes stay.
	Checkout(ctx context.Context, name, ref string, inPlace bool) (wire.MoveResult, error)
	DeleteSnapshot(ctx context.Context, name, ref string) (string, error)
	Tags(ctx context.Context, name string) (map[string]string, error)
	SetTag(ctx context.Context, name, tag, ref string) (wire.TagResult, error)
	GC(ctx context.Context, req wire.GCRequest, progress func(wire.Progress)) (wire.GCResult, error)
}

// Level is the access of a client; each level includes the previous one.
type Level int

// The levels.
const (
	Read   Level = iota + 1 // look at the history, and mark it
	Rewind                  // go back in place, and keep
	Owner                   // everything
)

// Options configures a Server.
type Options struct {
	Engine  Engine
	Sandbox string // its id
	Level   Level
	// Guard limits what clients can make this process do, and hides internal errors from them: for clients in the
	// sandbox. nil trusts them.
	Guard *Guard
	// Admission has costly requests wait for memory; nil admits all.
	Admission *admission.Gate
	// Spawned is the file that stores what spawn started, for the next server; "" stores nothing. It contains command
	// lines, so it is encrypted with Key, the secret of a key of package seal; without a key it is not encrypted.
	Spawned string
	Key     []byte
	// Base is the context of requests; nil is context.Background().
	Base context.Context
	// Log gets internal errors; nil is slog.Default().
	Log *slog.Logger
}

// Connections that a Server has at once. Who is in the sandbox and comes later is
// refused, not faster than five hundred times a second.
const (
	maxOwners   = 1024
	refusalRest = 2 * time.Millisecond
	refusalTime = time.Second
)

// Server speaks the protocol for one sandbox.
type Server struct {
	opt    Options
	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	pace   *pace // nil without a guard
	most   int   // connections
	limit  int   // bytes of a line

	mu     sync.Mutex
	conns  map[net.Conn]bool // guarded by mu
	closed bool              // guarded by mu
	work   sync.WaitGroup

	procs spawned
}

// errClosed is what requests are cancelled with.
var errClosed = errors.New("the socket was closed")

// New returns a Server, which takes over what an earlier one spawned. The caller must call Close.
func New(opt Options) *Server {
	if opt.Base == nil {
		opt.Base = context.Background()
	}
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	s := &Server{opt: opt, most: maxOwners, limit: limit.LineRequest, conns: map[net.Conn]bool{}}
	s.ctx, s.cancel = context.WithCancelCause(opt.Base)
	if opt.Guard != nil {
		s.most, s.limit, s.pace = limit.LineConnections, limit.LineInside, newPace()
	}
	s.takeUp()
	return s
}

// Serve answers connections until the listener or the server is closed.
func (s *Server) Serve(ln net.Listener) error {
	for {
		conn, err := ln.Accept()
		switch {
		case errors.Is(err, net.ErrClosed), err != nil && s.ctx.Err() != nil:
			return nil //nolint:nilerr // it is what closing looks like
		case err != nil:
			// Out of descriptors, most likely: it passes.
			s.opt.Log.Warn("accept a connection", "sandbox", s.opt.Sandbox, "err", err)
			rest(s.ctx, time.Second)
			continue
		}
		full, ok := s.begin(conn)
		switch {
		case ok:
			s.work.Go(func() { s.converse(conn) })
		case full:
			s.refuse(conn)
		default:
			conn.Close()
			return nil
		}
	}
}

// begin registers a connection, unless there are too many or the server is closed.
func (s *Server) begin(conn net.Conn) (full, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, false
	}
	if len(s.conns) >= s.most {
		return true, false
	}
	s.conns[conn] = true
	return false, true
}

func (s *Server) end(conn net.Conn) {
	conn.Close()
	s.mu.Lock()
	delete(s.conns, conn)
	s.mu.Unlock()
}

// refuse tells one client too many so. Nothing was sent to it, so that this does
// not wait.
func (s *Server) refuse(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(refusalTime))
	_, _ = conn.Write(errorFrame(errCrowd(s.most))) // it may have left
	rest(s.ctx, refusalRest)
}

// Close closes all connections, and returns when their goroutines have ended. Started commands continue. The listener
// belongs to the caller.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.cancel(errClosed)
	s.work.Wait()
}

// rest waits, and reports whether ctx has not ended.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Package lineapi implements the line protocol: one JSON object per line as a request, one or more lines as the
// answer, over the Unix socket of one sandbox. Clients are harnesses in any language, outside, and processes in
// the sandbox itself, inside. Only the daemon imports it.
//
// Requests of one connection are carried out in order; connections are independent. Every answer ends in a line with
// "ok":true, or with "error" and an optional "hint"; "kind" is to branch on. Only exec has lines before that one. A
// request that was read is carried out even if the client has disconnected; a tournament, a trial, a show and a diff
// are cancelled with their client. A truncated list has "truncated":true: inside a sandbox the limit is much lower
// than outside.
//
//	op               in                    out                            least
//	head                                   head                           Read
//	log                                    nodes, head, truncated         Read
//	branches                               nodes, head, truncated         Read
//	show             node                  the snapshot, changes,         Read
//	                                       truncated
//	diff             a, b (the present),   changes, truncated             Read
//	                 paths
//	tag                                    tags                           Read
//	tag              name                  node                           Read
//	mark             phase, label (its     node, head                     Read
//	                 message)
//	tag              name, ref             node                           Rewind
//	commit           message               node, head, changed, paths,    Rewind
//	                                       bytes
//	checkout, fork   node, in_place        head, from, kept, ...          Rewind
//	trial            cmd, at (the          exit, time_ms, timed_out,      Rewind
//	                 present),             tail
//	                 timeout_ms
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
	// Exec is as in httpapi.Commands.
	Exec(ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error)
	Head(ctx context.Context, name string) (string, error)
	Snapshots(ctx context.Context, name string) (wire.LogResult, error)
	Branches(ctx context.Context, name string) (wire.BranchesResult, error)
	// ShowSome is Show with at most most changes; 0 means as many as one answer holds.
	ShowSome(ctx context.Context, name, ref string, most int) (wire.ShowResult, error)
	Diff(ctx context.Context, name string, req wire.DiffRequest) (wire.DiffResult, error)
	Commit(ctx context.Context, name, message string) (wire.CommitResult, error)
	// Checkout rewinds to a snapshot. If inPlace is true, processes are kept.
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
	Read   Level = iota + 1 // read the history, and set messages
	Rewind                  // rewind in place, commit, and try commands in forks
	Owner                   // everything
)

// Options configures a Server.
type Options struct {
	Engine  Engine
	Sandbox string // its ID
	Level   Level
	// Guard limits what clients can make this process do, and hides internal errors from them: for clients in the
	// sandbox. nil trusts them.
	Guard *Guard
	// Admission makes costly requests wait for memory; nil admits all.
	Admission *admission.Gate
	// Spawned is the file that stores the spawned commands for the next server; "" stores nothing. It contains
	// command lines, so it is encrypted with Key (see package secretbox); without a key it is not encrypted.
	Spawned string
	Key     []byte
	// Base is the context of requests; nil is context.Background().
	Base context.Context
	// Log receives internal errors; nil is slog.Default().
	Log *slog.Logger
}

// Limits of connections to a Server. Beyond the limit, connections from the sandbox are refused, at most five
// hundred per second.
const (
	maxOwners   = 1024
	refusalRest = 2 * time.Millisecond
	refusalTime = time.Second
)

// Server serves the protocol for one sandbox.
type Server struct {
	opt    Options
	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	pace   *pace // nil without a guard
	most   int   // maximum number of connections
	limit  int   // maximum length of a line in bytes

	mu     sync.Mutex
	conns  map[net.Conn]bool // guarded by mu
	closed bool              // guarded by mu
	work   sync.WaitGroup

	procs spawned
}

// errClosed is the cause with which requests are cancelled.
var errClosed = errors.New("the socket was closed")

// New returns a Server, which adopts the commands that an earlier one spawned. The caller must call Close.
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

// Peers says what a listener tells about the users of its clients.
type Peers int

// What listeners tell.
const (
	PeersHere    Peers = iota // they are processes of this host, and the socket tells their user
	PeersUser                 // they run as the sandbox's user
	PeersUnknown              // they connect through another process
)

// Serve accepts connections until the listener or the server is closed. It may be called for several listeners.
func (s *Server) Serve(ln net.Listener, peers Peers) error {
	for {
		conn, err := ln.Accept()
		switch {
		case errors.Is(err, net.ErrClosed), err != nil && s.ctx.Err() != nil:
			return nil //nolint:nilerr // it is what closing looks like
		case err != nil:
			// Probably out of file descriptors, which is temporary.
			s.opt.Log.Warn("accept a connection", "sandbox", s.opt.Sandbox, "err", err)
			sleep(s.ctx, time.Second)
			continue
		}
		full, ok := s.begin(conn)
		switch {
		case ok:
			s.work.Go(func() { s.converse(conn, peers) })
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

// refuse sends the error for too many connections. The socket's buffer is empty, so the write does not block.
func (s *Server) refuse(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(refusalTime))
	_, _ = conn.Write(errorFrame(errCrowd(s.most))) // the client may be gone
	sleep(s.ctx, refusalRest)
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

// sleep waits for d, and reports whether ctx has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

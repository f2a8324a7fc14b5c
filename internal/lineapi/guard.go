package lineapi

import (
	"context"
	"errors"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
)

// The work that a client in the sandbox can cause is limited in every respect. Package limit bounds connections
// and the memory for requests, bigAnswer the memory for unread answers, and pace the time.
const (
	// longTime is the time limit for a line above limit.LineShort to arrive.
	longTime = 30 * time.Second
	// answerTime is the time limit for a client to read an answer.
	answerTime = 30 * time.Second
	// bigAnswer is the size, in bytes, above which an answer is written before the next request begins.
	bigAnswer = 256 << 10

	// After each request, its turn rests restFactor times as long as the request took, at most mostRest. After a
	// request that takes a snapshot, it rests at least snapshotRest.
	restFactor   = 3
	mostRest     = time.Second
	snapshotRest = 100 * time.Millisecond
)

// Guard is the limit shared by the servers of all sandboxes with untrusted clients.
type Guard struct{ long chan struct{} }

// NewGuard returns a Guard.
func NewGuard() *Guard { return &Guard{long: make(chan struct{}, limit.LineLong)} }

// errSlow ends the connection of a client that takes too long.
var errSlow = errors.New("a line timed out")

// pace limits the number of concurrent requests.
type pace struct{ turns chan struct{} }

func newPace() *pace { return &pace{turns: make(chan struct{}, limit.LineTurns)} }

// enter waits for a turn, and reports whether there was one before ctx ended.
func (p *pace) enter(ctx context.Context) bool {
	select {
	case p.turns <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// leave frees the turn after a rest.
func (p *pace) leave(took, least time.Duration) {
	time.AfterFunc(max(least, min(restFactor*took, mostRest)), func() { <-p.turns })
}

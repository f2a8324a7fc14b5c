package lineapi

import (
	"context"
	"errors"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
)

// What a client in the sandbox can make this process do is bounded in all its
// directions, by package limit: connections, memory for what it sends and
// for what it does not read (bigAnswer), and time (pace).
const (
	// longTime is how long a line above limit.LineShort may take to arrive.
	longTime = 30 * time.Second
	// answerTime is how long an answer may take to be read.
	answerTime = 30 * time.Second
	// bigAnswer is the length above which an answer is written before the next
	// request begins, in bytes.
	bigAnswer = 256 << 10

	// Behind each request its turn rests so many times as long as it took, between
	// none and mostRest; behind one that takes a snapshot at least snapshotRest.
	restFactor   = 3
	mostRest     = time.Second
	snapshotRest = 100 * time.Millisecond
)

// Guard is the limit shared by the servers of all sandboxes with untrusted clients.
type Guard struct{ long chan struct{} }

// NewGuard makes one.
func NewGuard() *Guard { return &Guard{long: make(chan struct{}, limit.LineLong)} }

// errSlow ends the connection of a client that takes too long.
var errSlow = errors.New("a line timed out")

// pace gives turns.
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

// leave gives the turn back after a rest.
func (p *pace) leave(took, least time.Duration) {
	time.AfterFunc(max(least, min(restFactor*took, mostRest)), func() { <-p.turns })
}

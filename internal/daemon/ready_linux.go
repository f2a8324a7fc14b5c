package daemon

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/probe"
	"github.com/coppice-dev/coppice/internal/engine"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Times of the checks of readiness. Callers without a token ask for them, so results are kept: good ones for a while,
// since the check of the drivers starts a process, and bad ones shortly, since a missing item may be repaired.
const (
	readyGood    = 30 * time.Second
	readyBad     = 2 * time.Second
	readyTimeout = 5 * time.Second
)

// readiness decides whether the daemon should receive requests. Its methods are safe for concurrent use.
type readiness struct {
	base     context.Context // ends with the daemon; checks outlive the requests that cause them
	check    func(ctx context.Context) error
	log      *slog.Logger
	stopping atomic.Bool

	mu     sync.Mutex
	result error     // guarded by mu
	until  time.Time // when result is too old; guarded by mu
}

// errNotReady is the error of readiness, for callers without a token. It does not say why; the log does.
func errNotReady(what string) error {
	return fault.New(fault.Unavailable, "%s", what).WithHint("see the daemon's log")
}

// ready implements httpapi.Options.Ready.
func (r *readiness) ready(context.Context) error {
	if r.stopping.Load() {
		return errNotReady("the daemon is stopping")
	}
	r.mu.Lock() // one check at a time
	defer r.mu.Unlock()
	if now := time.Now(); now.After(r.until) {
		before := r.result
		ctx, cancel := context.WithTimeout(r.base, readyTimeout)
		r.result = r.check(ctx) //nolint:contextcheck // the result is kept for later requests
		cancel()
		r.until = time.Now().Add(readyGood)
		if r.result != nil {
			r.until = time.Now().Add(readyBad)
		}
		switch {
		case r.result != nil && (before == nil || before.Error() != r.result.Error()):
			r.log.Error("not ready", "err", r.result)
		case r.result == nil && before != nil:
			r.log.Info("ready again")
		}
	}
	if r.result != nil {
		return errNotReady("the daemon is not ready")
	}
	return nil
}

// Ready reports whether the store answers, and the driver works: name, or any for "" and "auto". Unsupported: the host
// does not provide it.
func (w *whole) Ready(ctx context.Context, name string) error {
	if _, err := w.db.Findings(ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fault.Wrap(err, "read the store")
	}
	report, err := w.probe(ctx, engine.HostQuestion{Quick: true})
	if err != nil {
		return fault.Wrap(err, "probe the host")
	}
	return driverWorks(report, name)
}

// driverWorks checks whether a report has a driver; see Ready.
func driverWorks(report wire.ProbeReport, name string) error {
	why := fault.New(fault.Unsupported, "the host supports no storage driver").WithHint("see: coppice system probe")
	for _, it := range report.Items {
		named := name == it.Name || name == "" || name == "auto"
		switch {
		case it.Group != probe.Drivers || !named:
		case it.OK:
			return nil
		case it.Unknown:
			why = fault.New(fault.Unavailable, "cannot test driver %s: %s", it.Name, it.Detail).
				WithHint("see: coppice system probe")
		case name == it.Name:
			why = fault.New(fault.Unsupported, "driver %s does not work: %s", it.Name, it.Detail).WithHint("%s", it.Remedy)
		}
	}
	return why
}

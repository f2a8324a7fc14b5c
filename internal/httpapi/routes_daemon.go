package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
)

// health is the answer to GET /healthz.
type health struct {
	OK bool `json:"ok" doc:"always true"`
}

// addDaemon adds the operations on the daemon and on the whole store.
func (s *Server) addDaemon(api huma.API) {
	plain(s, api, operation("GET", "/healthz", "healthz", "Whether the daemon serves", tagDaemon, 0),
		func(context.Context, *struct{}) (health, error) { return health{true}, nil })
	plain(s, api, operation("GET", "/readyz", "readyz", "Whether the daemon is ready for requests", tagDaemon, 0), s.ready)
	silent(s, api, each(operation("GET", "/v1/ping", "ping", "Check the connection and the token", tagDaemon, auth.Read)),
		func(context.Context, *struct{}) error { return nil })

	metrics := operation("GET", "/metrics", "metrics", "Metrics for Prometheus", tagDaemon, auth.Read)
	answers(&metrics, http.StatusOK, "text/plain", "metrics in the Prometheus text format", text())
	raw(s, api, metrics, s.serveMetrics)

	plain(s, api, operation("GET", "/v1/status", "status", "The daemon's state", tagDaemon, auth.Read), s.status)
	plain(s, api, operation("GET", "/v1/probe", "probe", "Probe what this host supports", tagDaemon, auth.Read),
		func(ctx context.Context, _ *struct{}) (wire.ProbeReport, error) { return s.opt.Sandboxes.Probe(ctx) })
	long(s, api, operation("POST", "/v1/gc", "gc", "Delete unused data", tagDaemon, auth.Admin),
		func(ctx context.Context, in *struct{ Body *wire.GCRequest }, progress func(wire.Progress)) (wire.GCResult, error) {
			return s.opt.Sandboxes.GC(ctx, orZero(in.Body), progress)
		})
	long(s, api, operation("POST", "/v1/df", "diskUse", "Measure the disk use of the home", tagDaemon, auth.Read),
		func(ctx context.Context, _ *struct{}, progress func(wire.Progress)) (wire.DiskUse, error) {
			return s.opt.DiskMeter.DiskUse(ctx, progress)
		})
	long(s, api,
		operation("POST", "/v1/verify", "verifyAll", "Verify the whole store", tagDaemon, auth.Admin),
		func(ctx context.Context, _ *struct{}, progress func(wire.Progress)) (wire.VerifyResult, error) {
			return s.opt.Sandboxes.Verify(ctx, "", progress)
		})
}

func (s *Server) status(ctx context.Context, _ *struct{}) (wire.DaemonStatus, error) {
	st := s.opt.Status()
	list, err := s.opt.Sandboxes.List(ctx)
	st.Sandboxes, st.Live = len(list), 0
	for _, sb := range list {
		if sb.State == wire.StateLive {
			st.Live++
		}
	}
	return st, err
}

// orZero returns what p points to, or the zero value if p is nil.
func orZero[T any](p *T) T {
	if p == nil {
		return *new(T)
	}
	return *p
}

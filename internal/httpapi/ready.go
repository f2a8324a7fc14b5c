package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// readiness is the answer to GET /readyz.
type readiness struct {
	Ready bool `json:"ready" doc:"always true"`
}

// ready answers GET /readyz.
func (s *Server) ready(ctx context.Context, _ *struct{}) (readiness, error) {
	if s.opt.Ready != nil {
		if err := s.opt.Ready(ctx); err != nil {
			return readiness{}, err
		}
	}
	return readiness{true}, nil
}

// Starting answers requests before a Server exists: the daemon is alive, and not ready. It reads nothing but the path,
// so it needs no guard.
func Starting() http.Handler {
	err := fault.New(fault.Unavailable, "the daemon is starting").
		WithHint("wait until GET /readyz answers with status 200")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // nothing reads the body
		w.Header().Set("Connection", "close")
		if r.URL.Path == "/healthz" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			b, _ := json.Marshal(health{true}) // a bool
			send(w, http.StatusOK, asJSON, b)
			return
		}
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Cache-Control", "no-store")
		sendProblem(w, problemOf(err))
	})
}

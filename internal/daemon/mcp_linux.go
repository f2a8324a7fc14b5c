package daemon

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/mcpapi"
)

// mcpHandler serves the Model Context Protocol. A session has the rights of its caller. The end of base ends all
// sessions.
func mcpHandler(base context.Context, in *inside, version string, log *slog.Logger) http.Handler {
	return mcpapi.Handler(
		mcpapi.HandlerOptions{Base: base, Log: log, Caller: func(r *http.Request) (mcpapi.Caller, error) {
			who := auth.From(r.Context())
			if err := who.Allows(auth.Read); err != nil {
				return mcpapi.Caller{}, fault.Wrap(err, "speak the Model Context Protocol")
			}
			id := who.TokenID
			if id == "" {
				id = "owner"
			}
			return mcpapi.Caller{ID: id, Options: mcpapi.Options{Client: in.client(who), Version: version, Log: log}}, nil
		}})
}

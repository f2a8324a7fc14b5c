package httpapi

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

// addProcesses adds the operations that list the processes of a sandbox, and signal them.
func (s *Server) addProcesses(api huma.API) {
	const at = box + "/processes"
	plain(s, api, operation("GET", at, "listProcesses", "List the processes of a sandbox, by pid", tagExec, auth.Read),
		func(ctx context.Context, in *Named) (wire.ProcessesResult, error) {
			return s.opt.Power.Processes(ctx, in.Name)
		})
	silent(s, api,
		operation("POST", at+"/{pid}/signal", "signalProcess", "Send a signal to a process", tagExec, auth.Operate),
		func(ctx context.Context, in *struct {
			Named
			PID  int `path:"pid" doc:"pid inside the sandbox"`
			Body *wire.ProcessSignal
		}) error {
			if in.PID < 1 {
				return fault.New(fault.Invalid, "invalid pid %d: must be positive", in.PID).
					WithHint("send a \"pid\" of GET /v1/sandboxes/%s/processes", in.Name)
			}
			return s.opt.Power.SignalProcess(ctx, in.Name, in.PID, orZero(in.Body))
		})
}

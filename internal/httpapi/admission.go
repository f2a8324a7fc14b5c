package httpapi

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/coppice-dev/coppice/internal/admission"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	bound "github.com/coppice-dev/coppice/internal/limit"
)

// costs returns the maximum memory that operations need in the daemon, in bytes, by ID. Other operations need
// little memory, however large the sandbox is, or run in the sandbox: commands, their output, and snapshots, of
// which each sandbox takes one at a time.
func costs() map[string]int64 {
	const large, small = bound.CostLarge, bound.CostSmall
	return map[string]int64{
		// These list whole trees, or the changes in them.
		"diff": large, "show": large, "listFiles": large,
		"gitDiff": large, "gitPatch": large, "gitApply": large, "rebase": large,
		"diffProposal": large, "patchProposal": large, "applyProposal": large, "showProposal": large,
		// These pack, unpack or hash whole trees.
		"downloadFiles": large, "uploadFiles": large, "createSandbox": large,
		"exportProposal": large, "packLayer": large, "unpackLayers": large, "receive": large, "sending": large,
		"exportLedger": large, "diskUse": large, "gc": large, "verify": large, "verifyAll": large,
		// These list a history or records.
		"log": small, "listSnapshots": small, "branches": small, "net": small,
		"ledger": small, "inspectRecord": small, "ledgerPrograms": small, "summarizeLedger": small, "verifyLedger": small,
		"archiveLedger": small,
		// propose takes as long as its tests; each sandbox runs one at a time.
		"propose": small,
	}
}

// costOf returns the maximum memory of a request. Creating a sandbox is costly only from an archive.
func (s *Server) costOf(op *huma.Operation, r *http.Request) int64 {
	if op.OperationID == "createSandbox" && !strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") {
		return 0
	}
	return s.costs[op.OperationID]
}

// hold reserves the memory of a costly request until it has been answered, or refuses it.
func (s *Server) hold(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	cost := s.costOf(ctx.Operation(), r)
	if s.opt.Admission == nil || cost == 0 {
		next(ctx)
		return
	}
	waiting, cancel := s.bounded(r.Context())
	leave, err := s.opt.Admission.Enter(waiting,
		admission.Request{What: ctx.Operation().OperationID, Cost: cost, Parties: s.parties(r)})
	cancel()
	if err != nil {
		if fault.Is(err, fault.Unavailable) {
			w.Header().Set("Retry-After", strconv.Itoa(bound.AdmissionSeconds))
		}
		s.fail(w, r, err)
		return
	}
	defer leave()
	if auth.From(r.Context()).TokenID != "" {
		out := http.NewResponseController(w)
		defer func() { _ = out.SetWriteDeadline(time.Time{}) }() // the next request on the connection has no deadline
		w = &pacedAnswer{w, out}
	}
	next(&exchange{humaContext: humago.NewContext(ctx.Operation(), r, w)})
}

// parties returns the parties of a request: the sandbox, by its id, and the token.
func (s *Server) parties(r *http.Request) (out []admission.Party) {
	if name := r.PathValue("name"); name != "" {
		if sb, err := s.opt.Sandboxes.Sandbox(r.Context(), name); err == nil { // otherwise the sandbox does not exist
			name = sb.ID
		}
		out = append(out, admission.Sandbox(name))
	}
	if id := auth.From(r.Context()).TokenID; id != "" {
		out = append(out, admission.Token(id))
	}
	return out
}

// pacedAnswer sets write deadlines for a client with a token, since its answer holds memory. The owner has no
// deadline: a pager may keep the connection open.
type pacedAnswer struct {
	http.ResponseWriter
	out *http.ResponseController
}

// pacedPiece is the number of bytes that a client must read within bound.AnswerSeconds.
const pacedPiece = 64 << 10

// Unwrap is for http.ResponseController.
func (p *pacedAnswer) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// Write implements io.Writer.
func (p *pacedAnswer) Write(b []byte) (n int, err error) {
	for {
		piece := b[n:min(n+pacedPiece, len(b))]
		// only connections in tests lack deadlines
		_ = p.out.SetWriteDeadline(time.Now().Add(bound.AnswerSeconds * time.Second))
		m, err := p.ResponseWriter.Write(piece)
		if n += m; err != nil || n == len(b) {
			return n, err
		}
	}
}

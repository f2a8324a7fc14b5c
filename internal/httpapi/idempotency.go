package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

const (
	idempotencyHeader = "Idempotency-Key"
	// replayedHeader marks the answer of an earlier request.
	replayedHeader = "Idempotency-Replayed"

	keepAnswers = 24 * time.Hour
	maxKey      = 255
	maxAnswer   = 4 << 20 // a longer answer is not kept
)

// keptAnswer is a stored answer.
//
// A request is stored before it has any effect, with only Begun set. Then its answer replaces the entry, or, if
// it failed, the entry is deleted. So a request during which the daemon died, or whose answer could not be
// stored, is known and is not carried out a second time. If the first entry is lost, so is the effect of the
// request: both go into one log, in this order.
type keptAnswer struct {
	Begun   bool   `json:"begun,omitempty"`
	Request string `json:"request"` // hash of the request body
	Status  int    `json:"status"`
	Type    string `json:"type"`
	Body    []byte `json:"body"`
}

// replays are the requests with a key that are in progress in this daemon.
type replays struct {
	mu    sync.Mutex
	under map[string]bool // guarded by mu
}

// begin reports whether no other request with this key is in progress. If it returns true, the caller must call end.
func (r *replays) begin(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.under[key] {
		return false
	}
	if r.under == nil {
		r.under = map[string]bool{}
	}
	r.under[key] = true
	return true
}

func (r *replays) end(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.under, key)
}

// replayKey returns the key of a stored answer: keys of different principals and operations are separate.
func replayKey(p auth.Principal, r *http.Request, key string) (string, error) {
	if len(key) > maxKey || strings.ContainsFunc(key, func(c rune) bool { return c < 0x21 || c > 0x7e }) {
		return "", fault.New(fault.Invalid, "invalid %s: must be 1 to %d printable ASCII characters without spaces",
			idempotencyHeader, maxKey).
			WithHint("use a random UUID")
	}
	h := sha256.New()
	for _, part := range []string{p.TokenID, r.Method, r.URL.EscapedPath(), key} {
		h.Write([]byte(hex.EncodeToString([]byte(part)) + "\n"))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// replay answers a repeated request with the stored answer.
func (s *Server) replay(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	given := r.Header.Get(idempotencyHeader)
	if given == "" || ctx.Operation().Metadata[metaReplay] == nil {
		next(ctx)
		return
	}
	if s.opt.Answers == nil {
		s.fail(w, r, fault.New(fault.Unsupported, "this server does not support idempotency keys").
			WithHint("omit the header %s", idempotencyHeader))
		return
	}
	key, err := replayKey(auth.From(r.Context()), r, given)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if !s.replays.begin(key) {
		s.fail(w, r, fault.New(fault.Conflict, "a request with this %s is in progress", idempotencyHeader).
			WithHint("try again when it has finished"))
		return
	}
	defer s.replays.end(key)
	before, err := s.opt.Answers.Answer(r.Context(), key)
	switch {
	case err != nil:
		s.fail(w, r, err)
	case before != nil:
		s.answerAgain(w, r, before)
	default:
		if err := s.keep(key, keptAnswer{Begun: true}, keepAnswers); err != nil {
			s.fail(w, r, fault.Wrap(err, "record the idempotency key"))
			return
		}
		s.answerFirst(ctx, key, next)
	}
}

// answerAgain sends a stored answer, if the request is the same.
func (s *Server) answerAgain(w http.ResponseWriter, r *http.Request, before []byte) {
	var kept keptAnswer
	if err := json.Unmarshal(before, &kept); err != nil {
		s.fail(w, r, fault.New(fault.Corrupt, "a stored response").Because(err).WithHint("use another %s", idempotencyHeader))
		return
	}
	if kept.Begun {
		s.fail(w, r,
			fault.New(fault.Conflict,
				"a request with this %s was started, but its result is unknown: the daemon exited meanwhile", idempotencyHeader).
				WithHint("check what was done (coppice ls, coppice log NAME), then send what is missing with another key"))
		return
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, r.Body); err != nil {
		s.fail(w, r, fault.New(fault.Invalid, "read the request").Because(err))
		return
	}
	if hex.EncodeToString(sum.Sum(nil)) != kept.Request {
		p := documentOf(
			wire.Error{Kind: string(fault.Invalid), Message: idempotencyHeader + ": the key was used for a different request",
				Hint: "use another key for each request"})
		p.Status, p.Title = http.StatusUnprocessableEntity, http.StatusText(http.StatusUnprocessableEntity)
		sendProblem(w, p)
		return
	}
	h := w.Header()
	h.Set("Content-Type", kept.Type)
	h.Set(replayedHeader, "true")
	w.WriteHeader(kept.Status)
	_, _ = w.Write(kept.Body) // the client may be gone
}

// answerFirst carries out a request, and stores its answer on success: a failed request can be retried.
func (s *Server) answerFirst(ctx huma.Context, key string, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	sum := sha256.New()
	body := r.Body
	r.Body = &hashed{body, sum}
	rec := &recorder{ResponseWriter: w}
	op := ctx.Operation()
	next(&exchange{humaContext: humago.NewContext(op, r, rec)})
	answer, keep := keptAnswer{}, time.Duration(0) // keep 0 deletes the entry
	switch {
	case rec.status/100 == 2 && rec.large:
		return // the request was carried out, and stays stored as begun
	case rec.status/100 == 2 && !rec.spoilt:
		_, _ = io.Copy(io.Discard, r.Body) // hash the rest of the request as well
		answer = keptAnswer{Request: hex.EncodeToString(sum.Sum(nil)), Status: rec.status,
			Type: w.Header().Get("Content-Type"), Body: rec.body.Bytes()}
		keep = keepAnswers
	}
	if err := s.keep(key, answer, keep); err != nil {
		s.opt.Log.Error("could not store the response for an idempotency key; a retry will be refused", "request",
			r.Method+" "+r.URL.Path, "err", err)
	}
}

// keep stores the answer of a request, even if the client has disconnected; d 0 deletes it.
func (s *Server) keep(key string, a keptAnswer, d time.Duration) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return s.opt.Answers.KeepAnswer(context.WithoutCancel(s.opt.Base), key, b, d)
}

// hashed is a body that hashes what is read from it.
type hashed struct {
	io.ReadCloser
	sum hash.Hash
}

// Read implements io.Reader.
func (h *hashed) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	h.sum.Write(p[:n])
	return n, err
}

// Close does nothing: the rest is still to be read, and the server closes the body.
func (h *hashed) Close() error { return nil }

// recorder is a ResponseWriter that records the answer.
type recorder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
	spoilt bool // the answer ends in an error
	large  bool // the answer is too long to be stored
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(code int) {
	if r.status == 0 {
		r.status = code
	}
	r.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	if r.body.Len()+len(p) > maxAnswer {
		r.large = true
	} else {
		r.body.Write(p)
	}
	return r.ResponseWriter.Write(p)
}

// spoilt marks a partly sent answer as failed.
func spoilt(w http.ResponseWriter) {
	if r, ok := w.(*recorder); ok {
		r.spoilt = true
	}
}

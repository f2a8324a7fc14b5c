package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

// askedRecords selects records.
type askedRecords struct {
	Named
	From  int64    `query:"from" doc:"the number of the first record to return"`
	Since string   `query:"since" doc:"only records since this time, as in 2026-01-02T15:04:05Z"`
	Kinds []string `query:"kinds" doc:"only these kinds, separated by commas, such as exec,snapshot,network"`
	Last  int      `query:"last" doc:"only the newest N records, at most 1000"`
	Limit int      `query:"limit" doc:"maximum number of records; the default and maximum is 1000"`
}

func (in *askedRecords) request() (wire.LedgerRequest, error) {
	req := wire.LedgerRequest{From: in.From, Kinds: in.Kinds, Last: in.Last, Limit: in.Limit}
	if in.Since == "" {
		return req, nil
	}
	var err error
	if req.Since, err = time.Parse(time.RFC3339Nano, in.Since); err != nil {
		return req, fault.New(fault.Invalid, "invalid since %q: must be a time", shorten(in.Since)).
			WithHint("for example: 2026-01-02T15:04:05Z")
	}
	return req, nil
}

// addLedger adds the operations on records.
func (s *Server) addLedger(api huma.API) {
	const at = box + "/ledger"
	plain(s, api, operation("GET", at, "ledger", "List the records of a sandbox", tagLedger, auth.Read),
		func(ctx context.Context, in *askedRecords) (wire.LedgerResult, error) {
			req, err := in.request()
			if err != nil {
				return wire.LedgerResult{}, err
			}
			return s.opt.Records.LedgerRecords(ctx, in.Name, req)
		})
	op := streams(
		operation("GET", at+"/events", "ledgerEvents",
			"Follow the records of a sandbox until it is removed", tagLedger, auth.Read))
	answers(&op, http.StatusOK, ndjson,
		"one LedgerRecord per line; as Server-Sent Events if the client accepts text/event-stream",
		schemaOf[wire.LedgerRecord](api))
	answers(&op, http.StatusOK, asEvents, "", schemaOf[wire.LedgerRecord](api))
	raw(s, api, op, s.ledgerEvents)
	plain(s, api,
		operation("GET", at+"/records/{seq}", "inspectRecord", "Show a record and its related records",
			tagLedger, auth.Read),
		func(ctx context.Context, in *struct {
			Named
			Seq int64 `path:"seq" doc:"the number of the record"`
		}) (wire.LedgerInspection, error) {
			return s.opt.Records.InspectRecord(ctx, in.Name, in.Seq)
		})
	plain(s, api,
		operation("GET", at+"/records/{seq}/programs", "ledgerPrograms",
			"List the programs of a record, at most 1000", tagLedger, auth.Read),
		func(ctx context.Context, in *struct {
			Named
			Seq  int64 `path:"seq" doc:"the number of the record"`
			From int64 `query:"from" minimum:"0" doc:"index of the first program, from 0"`
		}) (wire.LedgerPrograms, error) {
			return s.opt.Records.LedgerPrograms(ctx, in.Name, in.Seq, in.From)
		})
	op = operation("GET", at+"/blobs/{blob}", "ledgerBlob", "Download the captured output that a record "+
		"names", tagLedger, auth.Read)
	answers(&op, http.StatusOK, asBytes, "the captured output", nil)
	raw(s, api, op, s.ledgerBlob)
	plain(s, api,
		operation("POST", at+"/verify", "verifyLedger", "Verify the records of a sandbox",
			tagLedger, auth.Read),
		func(ctx context.Context, in *struct {
			Named
			Body *wire.LedgerVerify
		}) (wire.LedgerVerified, error) {
			return s.opt.Records.VerifyLedger(ctx, in.Name, orZero(in.Body))
		})
	op = operation("GET", at+"/bundle", "exportLedger", "Export the records as a bundle that others can verify",
		tagLedger, auth.Read)
	answers(&op, http.StatusOK, asTar, "a bundle, see docs/LEDGER.md", nil)
	raw(s, api, op, s.ledgerBundle)
	plain(s, api,
		operation("GET", "/v1/ledger/checkpoint", "ledgerCheckpoint", "Show the signed checkpoint of the log",
			tagLedger, auth.Read),
		func(ctx context.Context, in *struct {
			From int64 `query:"from" doc:"prove growth from this size; -1: no proof" minimum:"-1" default:"-1"`
		}) (wire.LedgerCheckpoint, error) {
			if in.From < 0 {
				return s.opt.SignedLog.LedgerCheckpoint(ctx)
			}
			return s.opt.SignedLog.LedgerGrowth(ctx, in.From)
		})
	s.addWitness(api)
	plain(s, api,
		operation("GET", at+"/summary", "summarizeLedger",
			"Summarize the records of a sandbox, to compare it with others", tagLedger, auth.Read),
		func(ctx context.Context, in *Named) (wire.LedgerSummary, error) {
			return s.opt.Records.LedgerSummary(ctx, in.Name)
		})
	plain(s, api,
		operation("POST", at+"/archive", "archiveLedger", "Compress old records; they can still be read and verified",
			tagLedger, auth.Operate),
		func(ctx context.Context, in *struct {
			Named
			Body wire.LedgerArchive
		}) (wire.LedgerArchived, error) {
			return s.opt.Records.ArchiveLedger(ctx, in.Name, in.Body.Before)
		})
}

// addWitness adds the operations on keys and witnesses.
func (s *Server) addWitness(api huma.API) {
	plain(s, api,
		operation("GET", "/v1/ledger/keys", "ledgerKeys", "List the verifier keys of the log, and of this host as a witness",
			tagLedger, auth.Read),
		func(ctx context.Context, _ *struct{}) (wire.LedgerKeys, error) {
			return s.opt.SignedLog.LedgerKeys(ctx)
		})
	plain(s, api,
		operation("POST", "/v1/ledger/rotate-key", "rotateLedgerKey", "Rotate the signing key of the log",
			tagLedger, auth.Admin),
		func(ctx context.Context, _ *struct{}) (wire.LedgerKeys, error) {
			return s.opt.SignedLog.RotateLedgerKey(ctx)
		})
	plain(s, api,
		operation("POST", "/v1/ledger/cosign", "cosignLedger", "Cosign the checkpoint of another host's log",
			tagLedger, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.LedgerGrowth }) (wire.LedgerCosigned, error) {
			return s.opt.SignedLog.LedgerCosign(ctx, in.Body)
		})
	plain(s, api,
		operation("POST", "/v1/ledger/witness", "witnessLedger", "Store a checkpoint of this log that witnesses cosigned",
			tagLedger, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.LedgerGrowth }) (wire.LedgerWitnessed, error) {
			return s.opt.SignedLog.LedgerWitness(ctx, in.Body)
		})
}

func (s *Server) ledgerEvents(in *askedRecords, w http.ResponseWriter, r *http.Request) {
	req, err := in.request()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.stream(w, r, func(ctx context.Context, begin func() error, tell func(kind, id string, v any) error) error {
		return s.opt.Records.FollowLedger(ctx, in.Name, req, func(rec wire.LedgerRecord) error {
			if err := begin(); err != nil || rec.Kind == "" {
				return err
			}
			return tell(rec.Kind, "", rec)
		})
	})
}

// namedBlob is the input of an operation on a capture of a sandbox.
type namedBlob struct {
	Named
	Blob string `path:"blob" doc:"the name of the capture"`
}

// ledgerBlob sends a capture.
func (s *Server) ledgerBlob(in *namedBlob, w http.ResponseWriter, r *http.Request) {
	content, err := s.opt.Records.LedgerBlob(r.Context(), in.Name, in.Blob)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	harmless(w.Header(), asBytes, "output")
	_, _ = w.Write(content) // the client may be gone
}

// askedBundle selects the records of a bundle.
type askedBundle struct {
	Named
	From []int64 `query:"from" doc:"earlier sizes of the log, separated by commas, to prove growth from"`
}

// ledgerBundle sends a bundle. An error after the first byte is in the trailer.
func (s *Server) ledgerBundle(in *askedBundle, w http.ResponseWriter, r *http.Request) {
	out := &begun{w: w, start: func() {
		harmless(w.Header(), asTar, "ledger.tar")
		w.Header().Set("Trailer", errorTail)
	}}
	err := s.opt.Records.ExportLedger(r.Context(), in.Name, out, in.From...)
	switch {
	case err == nil:
	case !out.yes:
		s.fail(w, r, err)
	default:
		b, _ := json.Marshal(s.wireError(r.Method+" "+r.URL.Path, err)) // strings
		w.Header().Set(errorTail, string(b))
	}
}

package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Node is the input of an operation on one snapshot.
type Node struct {
	Named
	Ref string `path:"ref" doc:"a reference to a snapshot"`
}

// sent is the input of an operation with a required document.
type sent[T any] struct {
	Named
	Body T
}

// maySend is the input of an operation with an optional document.
type maySend[T any] struct {
	Named
	Body *T
}

// addHistory adds the operations on a sandbox's history.
func (s *Server) addHistory(api huma.API) {
	get := func(path, id, summary string) huma.Operation {
		return operation("GET", box+path, id, summary, tagHistory, auth.Read)
	}
	post := func(path, id, summary string) huma.Operation {
		return operation("POST", box+path, id, summary, tagHistory, auth.Operate)
	}
	drop := func(path, id, summary string) huma.Operation {
		return operation("DELETE", box+path, id, summary, tagHistory, auth.Operate)
	}
	log := func(ctx context.Context, in *Named) (wire.LogResult, error) { return s.opt.History.Log(ctx, in.Name) }
	commit := func(ctx context.Context, in *maySend[wire.CommitRequest]) (wire.CommitResult, error) {
		req := orZero(in.Body)
		if req.Memory {
			return s.opt.Moves.CommitMemory(ctx, in.Name, req.Message)
		}
		return s.opt.Moves.Commit(ctx, in.Name, req.Message)
	}

	plain(s, api, get("/head", "head", "Show HEAD, the snapshot that the live state descends from"),
		func(ctx context.Context, in *Named) (wire.HeadResult, error) {
			id, err := s.opt.History.Head(ctx, in.Name)
			return wire.HeadResult{Head: id}, err
		})
	plain(s, api, get("/log", "log", "Show the history, newest first, with its graph"), log)
	plain(s, api, get("/snapshots", "listSnapshots", "Show the history, as log does"), log)
	plain(s, api, get("/branches", "branches", "List branches"),
		func(ctx context.Context, in *Named) (wire.BranchesResult, error) {
			return s.opt.History.Branches(ctx, in.Name)
		})
	plain(s, api, get("/nodes/{ref}", "show", "Show a snapshot and its changes"),
		func(ctx context.Context, in *Node) (wire.ShowResult, error) {
			return s.opt.History.Show(ctx, in.Name, in.Ref)
		})
	plain(s, api, drop("/nodes/{ref}", "deleteSnapshot", "Delete a snapshot; its children keep their content"),
		func(ctx context.Context, in *Node) (wire.HeadResult, error) {
			id, err := s.opt.History.DeleteSnapshot(ctx, in.Name, in.Ref)
			return wire.HeadResult{Head: id}, err
		})
	s.addDiff(api)

	plain(s, api, replayable(post("/commit", "commit", "Take a snapshot")), commit)
	plain(s, api, replayable(created(post("/snapshots", "createSnapshot", "Take a snapshot, as commit does"))),
		commit)
	plain(s, api, post("/mark", "mark", "Mark a step of work with a message"),
		func(ctx context.Context, in *maySend[wire.MarkRequest]) (wire.CommitResult, error) {
			return s.opt.Moves.Mark(ctx, in.Name, orZero(in.Body))
		})
	plain(s, api, post("/checkout", "checkout", "Rewind to a snapshot, after capturing the current state"),
		func(ctx context.Context, in *sent[wire.CheckoutRequest]) (wire.MoveResult, error) {
			if in.Body.Node == "" {
				return wire.MoveResult{}, fault.New(fault.Invalid, "rewind requires a snapshot").
					WithHint("send the snapshot as \"node\"")
			}
			return s.opt.Moves.Checkout(ctx, in.Name, in.Body)
		})
	plain(s, api, post("/undo", "undo", "Undo the last changes, after capturing the current state"),
		func(ctx context.Context, in *maySend[wire.UndoRequest]) (wire.MoveResult, error) {
			req := orZero(in.Body)
			if req.N < 0 {
				return wire.MoveResult{}, fault.New(fault.Invalid, "invalid number of snapshots to undo %d: must be "+
					"positive", req.N).
					WithHint("send a number of 1 or more")
			}
			return s.opt.Moves.Undo(ctx, in.Name, req)
		})
	plain(s, api, post("/redo", "redo", "Redo the last undo"),
		func(ctx context.Context, in *maySend[wire.RedoRequest]) (wire.MoveResult, error) {
			return s.opt.Moves.Redo(ctx, in.Name, orZero(in.Body))
		})

	plain(s, api, get("/tags", "listTags", "List tags"),
		func(ctx context.Context, in *Named) (wire.TagsResult, error) {
			tags, err := s.opt.History.Tags(ctx, in.Name)
			return wire.TagsResult{Tags: tags}, err
		})
	plain(s, api, post("/tags", "setTag", "Set a tag"),
		func(ctx context.Context, in *sent[wire.TagRequest]) (wire.TagResult, error) {
			if in.Body.Name == "" {
				return wire.TagResult{}, fault.New(fault.Invalid, "tag requires a name").WithHint("send the tag as \"name\"")
			}
			return s.opt.History.SetTag(ctx, in.Name, in.Body.Name, in.Body.Ref)
		})
	silent(s, api, drop("/tags/{tag}", "deleteTag", "Delete a tag"),
		func(ctx context.Context, in *struct {
			Named
			Tag string `path:"tag" doc:"the tag"`
		}) error {
			return s.opt.History.DeleteTag(ctx, in.Name, in.Tag)
		})
	long(s, api, post("/verify", "verify", "Verify the layers of a sandbox"),
		func(ctx context.Context, in *Named, progress func(wire.Progress)) (wire.VerifyResult, error) {
			return s.opt.Sandboxes.Verify(ctx, in.Name, progress)
		})
}

// diffInput selects the two states to compare.
type diffInput struct {
	Named
	A     string   `query:"a" doc:"a reference; the default is HEAD, and with other the live state"`
	B     string   `query:"b" doc:"a reference; the default is the live state"`
	Other string   `query:"other" doc:"name or id of the sandbox that b is a state of; the default is the same one"`
	Paths []string `query:"path,explode" doc:"only these paths and those below them"`
	Stat  bool     `query:"stat" doc:"count lines"`
	Limit int      `query:"limit" minimum:"0" maximum:"100000" doc:"maximum number of changes; 0: as many as fit"`
	Patch bool     `query:"patch" doc:"return unified diffs"`
}

func (s *Server) addDiff(api huma.API) {
	op := operation("GET", box+"/diff", "diff", "Compare two states", tagHistory, auth.Read)
	answers(&op, http.StatusOK, asJSON,
		"the changes; with patch, unified diffs; a late error is in the trailer "+errorTail,
		schemaOf[wire.DiffResult](api))
	answers(&op, http.StatusOK, "text/x-diff", "", text())
	raw(s, api, op, s.diff)
}

// diff answers with a DiffResult, or with unified diffs for patch=true.
func (s *Server) diff(in *diffInput, w http.ResponseWriter, r *http.Request) {
	req := wire.DiffRequest{A: in.A, B: in.B, Paths: in.Paths, Stat: in.Stat, Limit: in.Limit}
	switch {
	case in.Other != "":
		other, err := s.reach(r.Context(), auth.Read, in.Other)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		req.Other = other
	case req.A == "":
		req.A = "HEAD"
	}
	if !in.Patch {
		res, err := s.opt.History.Diff(r.Context(), in.Name, req)
		s.sendJSON(w, r, http.StatusOK, &res, err)
		return
	}
	s.sendPatch(w, r, func(ctx context.Context, pw io.Writer) error { return s.opt.History.Patch(ctx, in.Name, req, pw) })
}

// sendPatch answers with what write writes. An error after the first byte is in the trailer Coppice-Error.
func (s *Server) sendPatch(w http.ResponseWriter, r *http.Request, write func(context.Context, io.Writer) error) {
	s.send(w, r, "text/x-diff; charset=utf-8", write)
}

// send answers with what write writes. An error after the first byte is in the trailer.
func (s *Server) send(
	w http.ResponseWriter, r *http.Request, kind string, write func(context.Context, io.Writer) error,
) {
	pw := &patchWriter{w: w, kind: kind}
	err := write(r.Context(), pw)
	switch {
	case err == nil:
		pw.begin()
	case !pw.begun:
		s.fail(w, r, err)
	default:
		e := s.wireError(r.Method+" "+r.URL.Path, err)
		b, _ := json.Marshal(e) // strings
		w.Header().Set(errorTail, string(b))
	}
}

// patchWriter sends the header with the first byte.
type patchWriter struct {
	w     http.ResponseWriter
	kind  string
	begun bool
}

func (p *patchWriter) begin() {
	if p.begun {
		return
	}
	p.begun = true
	p.w.Header().Set("Content-Type", p.kind)
	p.w.Header().Set("Trailer", errorTail)
	p.w.WriteHeader(http.StatusOK)
}

// Write implements io.Writer.
func (p *patchWriter) Write(b []byte) (int, error) {
	p.begin()
	return p.w.Write(b)
}

//go:build linux

package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitwork"
	"github.com/coppice-dev/coppice/internal/history"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// newGit makes the Git of an engine.
func newGit(e *Engine) *gitwork.Git {
	scratch := func() string { return e.Repos.Scratch() }
	return gitwork.New(gitwork.Config{
		API: gitAPI{e}, Layers: gitLayers{e}, Work: gitRecords{e}, Book: e.Book, Settings: e.DB,
		Scratch: scratch, CheckPaths: history.CheckPaths, Now: e.Now, Log: e.Logger,
	})
}

// neverApplied returns gitwork.Git.NeverApplied for the Book, which is made before Git.
func neverApplied(e *Engine) func(context.Context, *meta.Sandbox, *format.Apply) bool {
	return func(ctx context.Context, rec *meta.Sandbox, b *format.Apply) bool {
		return e.Git.NeverApplied(ctx, rec, b)
	}
}

// gitAPI implements gitwork.API: the operations of the daemon's clients, without HTTP.
type gitAPI struct{ *Engine }

// Exec implements gitwork.API. An error of a stream ends the relay of the command's output.
func (a gitAPI) Exec(ctx context.Context, name string, req wire.ExecRequest, st client.Streams) (wire.Exit, error) {
	return a.Commands.Exec(ctx, name, req, streamed{st})
}

// Policy implements gitwork.API.
func (a gitAPI) Policy(ctx context.Context, name string) (wire.PolicyResult, error) {
	return a.Policies.Policy(ctx, name)
}

// ExportLedger implements gitwork.API.
func (a gitAPI) ExportLedger(ctx context.Context, name string, w io.Writer, old ...int64) error {
	return a.Records.ExportLedger(ctx, name, w, old...)
}

// LedgerCheckpoint implements gitwork.API.
func (a gitAPI) LedgerCheckpoint(ctx context.Context) (wire.LedgerCheckpoint, error) {
	return a.Records.LedgerCheckpoint(ctx)
}

// Trial implements gitwork.API.
func (a gitAPI) Trial(ctx context.Context, name string, req wire.TrialRequest) (wire.Trial, error) {
	return a.Tournaments.Trial(ctx, name, req)
}

// streamed is the client end of the stream of a command without input: it splits the frames into the
// client's streams.
type streamed struct{ client.Streams }

// Read returns io.EOF: there is no input.
func (streamed) Read([]byte) (int, error) { return 0, io.EOF }

// Write takes one whole frame.
func (s streamed) Write(p []byte) (int, error) {
	t, payload, err := wire.ReadFrame(bytes.NewReader(p), nil)
	if err != nil {
		return 0, err
	}
	switch t {
	case wire.FrameStarted:
		if s.Started == nil {
			break
		}
		var x wire.Started
		if err := json.Unmarshal(payload, &x); err != nil {
			return 0, fault.New(fault.Internal, "malformed frame from the monitor").Because(err)
		}
		s.Started(x)
	case wire.FrameStdout:
		_, err = s.Stdout.Write(payload)
	case wire.FrameStderr:
		_, err = s.Stderr.Write(payload)
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// gitRecords implements gitwork.Work.
type gitRecords struct{ *Engine }

// Sandbox implements gitwork.Work.
func (g gitRecords) Sandbox(ctx context.Context, ref string) (meta.Sandbox, error) {
	return g.DB.Sandbox(ctx, ref)
}

// Head implements gitwork.Work.
func (g gitRecords) Head(ctx context.Context, ref string) (timeline.SnapshotID, error) {
	return g.DB.Head(ctx, ref)
}

// UpdateSandbox implements gitwork.Work.
func (g gitRecords) UpdateSandbox(
	ctx context.Context, id timeline.SandboxID, change func(*meta.Sandbox) error,
) error {
	return g.DB.UpdateSandbox(ctx, id, change)
}

// Repository implements gitwork.Work.
func (g gitRecords) Repository(ctx context.Context, rec *meta.Sandbox) (*repo.Repo, error) {
	return g.trees.Repository(ctx, rec)
}

// Running implements gitwork.Work.
func (g gitRecords) Running(ctx context.Context, id timeline.SandboxID) (int, error) {
	box, _, err := liveNow(ctx, g.Engine, string(id), "rebasing")
	if err != nil {
		return 0, err
	}
	procs := g.register.In(id)
	if box != nil {
		n, err := box.Procs(ctx)
		if err != nil && !fault.Is(err, fault.Unavailable) {
			return 0, err
		}
		procs = max(procs, n)
	}
	return procs, nil
}

// CancelExec implements gitwork.Work.
func (g gitRecords) CancelExec(ctx context.Context, name, exec string) error {
	return g.Commands.CancelExec(ctx, name, exec)
}

// HoldBase implements gitwork.Work.
func (g gitRecords) HoldBase(ctx context.Context, r *repo.Repo, commit repo.OID) error {
	return g.refs.HoldCommit(ctx, r, commit)
}

// ReleaseBase implements gitwork.Work.
func (g gitRecords) ReleaseBase(ctx context.Context, r *repo.Repo, commit repo.OID) error {
	return g.refs.LetGo(ctx, r, string(commit))
}

// gitLayers implements gitwork.Layers.
type gitLayers struct{ *Engine }

// Present implements gitwork.Layers.
func (g gitLayers) Present(ctx context.Context, ref string) (meta.Sandbox, timeline.SnapshotID, error) {
	s, rec, err := g.acquire(ctx, ref, "comparing its changes")
	if err != nil {
		return rec, "", err
	}
	defer s.unlock(g.Engine)
	t, err := g.capture(ctx, s, &rec, note{cause: timeline.CauseAuto})
	return rec, t.id, err
}

// Changed implements gitwork.Layers.
func (g gitLayers) Changed(
	ctx context.Context, rec *meta.Sandbox, at timeline.SnapshotID, top string,
	changed func(*layer.Change) error, use func(*layer.View) error,
) error {
	g.shape.RLock() // the layers must stay
	defer g.shape.RUnlock()
	files, err := g.changedBelow(ctx, rec, at, top, changed)
	if err != nil {
		return fault.Wrap(err, "find what changed")
	}
	return use(files)
}

// History implements gitwork.Layers.
func (g gitLayers) History(
	ctx context.Context, rec *meta.Sandbox, at timeline.SnapshotID,
) (*timeline.History, map[timeline.SnapshotID][]string, error) {
	h, err := g.Histories.History(ctx, rec)
	if err != nil {
		return nil, nil, err
	}
	line, err := g.DB.Lineage(ctx, at)
	if err != nil {
		return nil, nil, err
	}
	layers, err := g.DB.Layers(ctx)
	if err != nil {
		return nil, nil, err
	}
	digests := map[timeline.LayerID]string{}
	for _, l := range layers {
		if l.Finalized && l.Digest != "" && !l.Merged {
			digests[l.ID] = l.Digest
		}
	}
	of := map[timeline.SnapshotID][]string{}
	for id, routes := range line.Routes {
		for _, r := range routes {
			if d := digests[r.Layer]; d != "" {
				of[id] = append(of[id], d)
			}
		}
	}
	return h, of, nil
}

// changedBelow returns the files of a snapshot, and calls fn for the paths at or below top that differ
// from the sandbox's first snapshot. The caller holds shape.
func (g gitLayers) changedBelow(
	ctx context.Context, rec *meta.Sandbox, at timeline.SnapshotID, top string, fn func(*layer.Change) error,
) (*layer.View, error) {
	h, err := g.Histories.History(ctx, rec)
	if err != nil {
		return nil, err
	}
	var parts []rootspec.Part
	if g.presented(rec) {
		drv, live, err := g.live(ctx, rec)
		if err != nil {
			return nil, err
		}
		if parts, err = drv.Parts(live); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	before, _, err := g.masks.Stack(ctx, rec, h.Began(at))
	if err != nil {
		return nil, err
	}
	after, _, err := g.masks.Stack(ctx, rec, at)
	if err != nil {
		return nil, err
	}
	touched := rootspec.Differing(before, after)
	now := g.Layers.View(after, rootspec.Places(parts)...)
	all := layer.DiffOptions{Paths: []string{top}, Most: math.MaxInt, Bytes: limit.PatchBytes}
	return now, layer.EachChange(ctx, g.Layers.View(before, rootspec.Places(parts)...), now, touched, all, fn)
}

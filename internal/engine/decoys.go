//go:build linux

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/decoy"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/label"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// Decoys are made when a sandbox is first started with them, and kept in its file
// "decoys", which nobody but the daemon's user reads. What is shown inside is a copy, in
// memory: see rootspec.Access. A fork is a sandbox of its own, and has its own.

const (
	decoysName    = "decoys"
	decoysVersion = 1
)

// decoyFile is what the file holds.
type decoyFile struct {
	Version int                   `json:"version"`
	Files   map[string]decoy.File `json:"files"` // by the path that is meant inside, whatever links are on the way
}

func (e *Engine) decoysPath(id timeline.SandboxID) string {
	return filepath.Join(e.sandboxDir(id), decoysName)
}

// hasDecoys reports whether a sandbox was ever started with decoys.
func (e *Engine) hasDecoys(id timeline.SandboxID) bool {
	_, err := os.Lstat(e.decoysPath(id))
	return err == nil
}

// decoys gives the decoys of a sandbox, which are made if there are none yet: at says
// where each path that is meant has come to lie. The caller holds the sandbox's lock.
func (e *Engine) decoys(
	rec *meta.Sandbox, at map[string]string,
) (out []rootspec.Decoy, tokens []DecoyToken, err error) {
	if len(at) == 0 {
		return nil, nil, nil
	}
	all, err := e.readDecoys(rec)
	if err != nil {
		return nil, nil, err
	}
	made := false
	for p := range at {
		if _, ok := all.Files[p]; ok {
			continue
		}
		if all.Files[p], err = decoy.Make(p, decoy.Owner{Name: e.ownerOf(p)}, e.Rand, e.Now()); err != nil {
			return nil, nil, err
		}
		made = true
	}
	if made {
		if err := e.writeDecoys(rec, all); err != nil {
			return nil, nil, err
		}
	}
	shown := map[string]bool{}
	for _, p := range slices.Sorted(maps.Keys(at)) {
		if shown[at[p]] {
			continue // by another name
		}
		shown[at[p]] = true
		f := all.Files[p]
		out = append(out, rootspec.Decoy{At: at[p], Text: f.Text, Mode: f.Mode, ModTime: f.ModTime})
		for _, t := range f.Tokens {
			tokens = append(tokens, DecoyToken{at[p], t})
		}
	}
	return out, tokens, nil
}

// ownerOf names the user in whose home a path is; "" is nobody known.
func (e *Engine) ownerOf(p string) string {
	for _, h := range e.Homes {
		if rootspec.Within(p, h) {
			return filepath.Base(h)
		}
	}
	return ""
}

// readDecoys reads what is kept; nothing is no error.
func (e *Engine) readDecoys(rec *meta.Sandbox) (all decoyFile, err error) {
	all = decoyFile{Version: decoysVersion, Files: map[string]decoy.File{}}
	text, err := os.ReadFile(e.decoysPath(rec.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return all, fault.Wrap(err, "read the decoys of sandbox %s", rec.Name)
	}
	if err := json.Unmarshal(text, &all); err != nil || all.Files == nil {
		return all, fault.New(fault.Corrupt, "the decoys of sandbox %s are damaged", rec.Name).Because(err).
			WithHint("remove %s: others are made", e.decoysPath(rec.ID))
	}
	if all.Version != decoysVersion {
		return all, fault.New(fault.Version, "the decoys of sandbox %s are of version %d", rec.Name, all.Version).
			WithHint("use the coppice that made them")
	}
	return all, nil
}

// writeDecoys keeps decoys, durably: what was shown once is recognised for ever.
func (e *Engine) writeDecoys(rec *meta.Sandbox, all decoyFile) (err error) {
	defer func() { err = fault.Wrap(err, "keep the decoys of sandbox %s", rec.Name) }()
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return vfs.WriteFile(e.FS, e.decoysPath(rec.ID), text)
}

// decoyPlaces lists where a sandbox has decoys, by paths without links.
func (e *Engine) decoyPlaces(ctx context.Context, rec *meta.Sandbox) ([]string, error) {
	c, err := e.Policies.Hides(ctx, rec)
	if err != nil || len(c.Decoys) == 0 {
		return nil, err
	}
	mask, err := e.maskOf(ctx, rec)
	if err != nil || mask == "" {
		return nil, err
	}
	return rootfs.Holders(mask)
}

// stopsWhenTouched reports whether the policy of a sandbox has it stopped when a decoy is
// touched.
func (e *Engine) stopsWhenTouched(ctx context.Context, rec *meta.Sandbox) (bool, error) {
	p, err := e.Policies.Of(ctx, rec)
	return p.OnTouch.Value == policy.TouchStop, err
}

// watchDecoys tells of decoys that are touched while a box lives: from a time on, of which
// its journal knows.
func (e *Engine) watchDecoys(id timeline.SandboxID, b Box, since time.Time) {
	e.bg.Go(func() error {
		e.followDecoys(e.bgCtx, id, b, since)
		return nil
	})
}

// followDecoys is watchDecoys, until ctx or the box ends.
func (e *Engine) followDecoys(ctx context.Context, id timeline.SandboxID, b Box, since time.Time) {
	err := e.followBox(ctx, id, b, journal.Query{Since: since, Kinds: []string{wire.NetDecoy}}, func(ev wire.NetEvent) {
		e.touched(ctx, id, ev)
	})
	if err != nil && ctx.Err() == nil {
		e.Logger.Warn("nobody is told of decoys that are touched", "sandbox", id, "err", err)
	}
}

// touched tells of a decoy.
func (e *Engine) touched(ctx context.Context, id timeline.SandboxID, ev wire.NetEvent) {
	rec, err := e.DB.Sandbox(ctx, string(id))
	if err != nil {
		return // it was removed
	}
	out := events.About(&rec, wire.EventDecoy)
	out.Message, out.Detail = ev.Decoy, audit.DecoyTouch(ev)
	e.Feed.Emit(out)
}

// halts gives the newest touch since a time for which a box was stopped.
func (e *Engine) halts(id timeline.SandboxID, since time.Time) (why string, at time.Time) {
	if !e.hasDecoys(id) {
		return "", at
	}
	evs, err := journal.Read(e.journalAt(id), journal.Query{Since: since, Kinds: []string{wire.NetDecoy}})
	if err != nil {
		e.Logger.Warn("why a sandbox was stopped is not known", "sandbox", id, "err", err)
	}
	for _, ev := range slices.Backward(evs) {
		if ev.Verdict == wire.VerdictStop {
			out := "the decoy " + ev.Decoy + ": " + ev.Reason
			if to := ev.Place(); to != "" {
				out += " (" + to + ")"
			}
			return out, ev.Time
		}
	}
	return "", at
}

// halted reports whether a sandbox was stopped for what it did since a time.
func (e *Engine) halted(since time.Time, rec *meta.Sandbox) bool {
	why, _ := e.halts(rec.ID, since)
	return why != ""
}

// noteHalt records why a box was stopped, if it was for what it did. The caller holds the
// sandbox's lock.
func (e *Engine) noteHalt(ctx context.Context, rec *meta.Sandbox) {
	var since time.Time
	if rec.Halted != nil {
		since = rec.Halted.At.Add(1)
	}
	why, at := e.halts(rec.ID, since)
	if why == "" {
		return
	}
	h := &meta.Halt{At: at, Why: label.Clean(events.Cut(why))}
	if err := e.DB.UpdateSandbox(ctx, rec.ID, func(r *meta.Sandbox) error { r.Halted = h; return nil }); err != nil {
		e.Logger.Warn("why a sandbox was stopped is not recorded", "sandbox", rec.Name, "err", err)
		return
	}
	rec.Halted = h
}

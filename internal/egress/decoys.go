//go:build linux

package egress

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
	"github.com/coppice-dev/coppice/internal/message"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// Decoys are created when a sandbox is first started with them, and stored in its file "decoys", which only the
// daemon's user can read. The sandbox shows copies in memory: see rootspec.Access. A fork has its own decoys.

const (
	decoysName    = "decoys"
	decoysVersion = 1
)

// DecoyToken is a token, and the path inside of the decoy that contains it.
type DecoyToken struct{ Path, Text string }

// decoyFile is the content of the file "decoys".
type decoyFile struct {
	Version int                   `json:"version"`
	Files   map[string]decoy.File `json:"files"` // by path as the policy names it, before links are followed
}

// decoysPath returns the path of the file with the decoys of a sandbox; it may not exist.
func (c *Control) decoysPath(id timeline.SandboxID) string {
	return filepath.Join(c.config.Sandboxes.Dir(id), decoysName)
}

// HasDecoys reports whether a sandbox was ever started with decoys.
func (c *Control) HasDecoys(id timeline.SandboxID) bool {
	_, err := os.Lstat(c.decoysPath(id))
	return err == nil
}

// Decoys returns the decoys of a sandbox and the tokens in them. at maps the path of each decoy in the policy to the
// path without links at which it is shown. Decoys creates and stores those that do not exist yet, so the caller must
// prove that it holds the sandbox's lock.
func (c *Control) Decoys(
	_ *sandbox.Held, rec *meta.Sandbox, at map[string]string,
) (out []rootspec.Decoy, tokens []DecoyToken, err error) {
	if len(at) == 0 {
		return nil, nil, nil
	}
	all, err := c.readDecoys(rec)
	if err != nil {
		return nil, nil, err
	}
	made := false
	for p := range at {
		if _, ok := all.Files[p]; ok {
			continue
		}
		if all.Files[p], err = decoy.Make(p, decoy.Owner{Name: c.ownerOf(p)}, c.config.Rand, c.config.Now()); err != nil {
			return nil, nil, err
		}
		made = true
	}
	if made {
		if err := c.writeDecoys(rec, all); err != nil {
			return nil, nil, err
		}
	}
	shown := map[string]bool{}
	for _, p := range slices.Sorted(maps.Keys(at)) {
		if shown[at[p]] {
			continue // shown under another name
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

// ownerOf returns the user whose home contains a path; "" if there is none.
func (c *Control) ownerOf(p string) string {
	for _, h := range c.config.Homes {
		if rootspec.Within(p, h) {
			return filepath.Base(h)
		}
	}
	return ""
}

// readDecoys reads the stored decoys of a sandbox. It returns no error if there are none.
func (c *Control) readDecoys(rec *meta.Sandbox) (all decoyFile, err error) {
	all = decoyFile{Version: decoysVersion, Files: map[string]decoy.File{}}
	text, err := os.ReadFile(c.decoysPath(rec.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return all, fault.Wrap(err, "read the decoys of sandbox %s", rec.Name)
	}
	if err := json.Unmarshal(text, &all); err != nil || all.Files == nil {
		return all, fault.New(fault.Corrupt, "the decoys of sandbox %s are damaged", rec.Name).Because(err).
			WithHint("remove %s; new ones are created", c.decoysPath(rec.ID))
	}
	if all.Version != decoysVersion {
		return all, fault.New(fault.Version, "unknown version %[2]d of the decoys of sandbox %[1]s", rec.Name, all.Version).
			WithHint("use the version of coppice that created them")
	}
	return all, nil
}

// DecoyTokens returns the tokens in the stored decoys of a sandbox.
func (c *Control) DecoyTokens(rec *meta.Sandbox) (tokens []string, err error) {
	decoys, err := c.readDecoys(rec)
	for _, f := range decoys.Files {
		tokens = append(tokens, f.Tokens...)
	}
	return tokens, err
}

// writeDecoys stores decoys durably, so that the token in a decoy that the sandbox has read is always recognized.
func (c *Control) writeDecoys(rec *meta.Sandbox, all decoyFile) (err error) {
	defer func() { err = fault.Wrap(err, "store the decoys of sandbox %s", rec.Name) }()
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return vfs.WriteFile(c.config.FS, c.decoysPath(rec.ID), text)
}

// DecoyPlaces lists the paths of a sandbox's decoys, with symbolic links resolved.
func (c *Control) DecoyPlaces(ctx context.Context, rec *meta.Sandbox) ([]string, error) {
	hides, err := c.config.Policies.Hides(ctx, rec)
	if err != nil || len(hides.Decoys) == 0 {
		return nil, err
	}
	mask, err := c.config.Sandboxes.Mask(ctx, rec)
	if err != nil || mask == "" {
		return nil, err
	}
	return rootfs.Holders(mask)
}

// StopsWhenTouched reports whether the policy of a sandbox stops it when a decoy is touched.
func (c *Control) StopsWhenTouched(ctx context.Context, rec *meta.Sandbox) (bool, error) {
	p, err := c.config.Policies.Of(ctx, rec)
	return p.OnTouch.Value == policy.TouchStop, err
}

// WatchDecoys emits an event about each decoy that is touched while a box lives, and about those in its journal after
// since. It returns at once.
func (c *Control) WatchDecoys(id timeline.SandboxID, b Box, since time.Time) {
	c.config.Go(func(ctx context.Context) { c.followDecoys(ctx, id, b, since) })
}

// followDecoys is WatchDecoys, until ctx or the box ends.
func (c *Control) followDecoys(ctx context.Context, id timeline.SandboxID, b Box, since time.Time) {
	q := journal.Query{Since: since, Kinds: []string{wire.NetDecoy}}
	err := c.follow(ctx, id, b, q, func(ev wire.NetEvent) { c.touched(ctx, id, ev) })
	if err != nil && ctx.Err() == nil {
		c.config.Log.Warn("could not follow the decoys of a sandbox", "sandbox", id, "err", err)
	}
}

// touched emits an event about a decoy.
func (c *Control) touched(ctx context.Context, id timeline.SandboxID, ev wire.NetEvent) {
	rec, err := c.config.Records.Sandbox(ctx, string(id))
	if err != nil {
		return // it was removed
	}
	out := events.About(&rec, wire.EventDecoy)
	out.Message, out.Detail = ev.Decoy, audit.DecoyTouch(ev)
	c.config.Feed.Emit(out)
}

// halts returns the newest touch of a decoy since a time for which a box was stopped, and the time of the touch.
func (c *Control) halts(id timeline.SandboxID, since time.Time) (why string, at time.Time) {
	if !c.HasDecoys(id) {
		return "", at
	}
	evs, err := journal.Read(c.config.Sandboxes.Journal(id), journal.Query{Since: since, Kinds: []string{wire.NetDecoy}})
	if err != nil {
		c.config.Log.Warn("could not read why a sandbox was stopped", "sandbox", id, "err", err)
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

// ShareDecoys gives a fork that was not started yet the decoys of its parent, so that the parent's gate recognizes the
// tokens that the fork has read.
func (c *Control) ShareDecoys(fork, parent *meta.Sandbox) error {
	if !c.HasDecoys(parent.ID) {
		return nil
	}
	all, err := c.readDecoys(parent)
	if err != nil {
		return err
	}
	if err := vfs.MkdirAll(c.config.FS, c.config.Sandboxes.Dir(fork.ID)); err != nil {
		return fault.Wrap(err, "create the directory of sandbox %s", fork.Name)
	}
	return c.writeDecoys(fork, all)
}

// Attribute notes for a sandbox that its fork has touched decoys, as if the sandbox had touched them. killed reports
// whether the processes of the fork were killed for it.
func (c *Control) Attribute(to, fork timeline.SandboxID) (killed bool, err error) {
	if !c.HasDecoys(fork) {
		return false, nil
	}
	evs, err := journal.Read(c.config.Sandboxes.Journal(fork), journal.Query{Kinds: []string{wire.NetDecoy}})
	if err != nil {
		return false, fault.Wrap(err, "read what the processes of a fork have touched")
	}
	for _, ev := range evs {
		ev.Reason += "; in the fork of a trial, " + string(fork)
		if err := c.NoteEvent(to, ev); err != nil {
			return false, err
		}
		killed = killed || ev.Verdict == wire.VerdictStop
	}
	return killed, nil
}

// Halted reports whether a sandbox was stopped since a time because it touched a decoy.
func (c *Control) Halted(rec *meta.Sandbox, since time.Time) bool {
	why, _ := c.halts(rec.ID, since)
	return why != ""
}

// NoteHalt records why the box of a sandbox was stopped, if it was because a decoy was touched. The caller holds the
// sandbox's lock, or is recovery, before any operation starts.
func (c *Control) NoteHalt(ctx context.Context, rec *meta.Sandbox) {
	var since time.Time
	if rec.Halted != nil {
		since = rec.Halted.At.Add(1)
	}
	why, at := c.halts(rec.ID, since)
	if why == "" {
		return
	}
	h := &meta.Halt{At: at, Why: message.Clean(events.Cut(why))}
	note := func(r *meta.Sandbox) error { r.Halted = h; return nil }
	if err := c.config.Records.UpdateSandbox(ctx, rec.ID, note); err != nil {
		c.config.Log.Warn("could not record why a sandbox was stopped", "sandbox", rec.Name, "err", err)
		return
	}
	rec.Halted = h
}

//go:build linux

package history

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Tags returns the tags of a sandbox, with the snapshots that they name.
func (h *Histories) Tags(ctx context.Context, name string) (map[string]string, error) {
	_, t, err := h.Find(ctx, name)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for tag, id := range t.Tags {
		out[tag] = string(id)
	}
	return out, nil
}

// SetTag sets a tag to a snapshot, or moves it there.
func (h *Histories) SetTag(ctx context.Context, name, tag, ref string) (wire.TagResult, error) {
	rec, t, err := h.Find(ctx, name)
	if err != nil {
		return wire.TagResult{}, err
	}
	if err := timeline.ValidTag(tag); err != nil {
		return wire.TagResult{}, err
	}
	if err := h.config.Cleaners.For(ctx, &rec).CheckName("tag", tag); err != nil {
		return wire.TagResult{}, err
	}
	if ref == "" {
		ref = "HEAD"
	}
	id, err := t.Resolve(ref, h.config.Now())
	if err != nil {
		return wire.TagResult{}, err
	}
	changed, err := h.config.Budgets.MayChange(ctx, &rec)
	if err != nil {
		return wire.TagResult{}, err
	}
	changed()
	if err := h.config.DB.SetTag(ctx, rec.ID, tag, id); err != nil {
		return wire.TagResult{}, err
	}
	h.config.Feed.Emit(events.Tagged(&rec, tag, id))
	return wire.TagResult{Name: tag, Node: string(id)}, nil
}

// DeleteTag removes a tag; the snapshot stays.
func (h *Histories) DeleteTag(ctx context.Context, name, tag string) error {
	rec, t, err := h.Find(ctx, name)
	if err != nil {
		return err
	}
	if _, ok := t.Tags[tag]; !ok {
		return fault.New(fault.NotFound, "tag %[2]q not found in sandbox %[1]s", rec.Name, tag).
			WithHint("its tags: %s", strings.Join(slices.Sorted(maps.Keys(t.Tags)), " "))
	}
	if err := h.config.DB.DeleteTag(ctx, rec.ID, tag); err != nil {
		return err
	}
	h.config.Feed.Emit(events.Tagged(&rec, tag, ""))
	return nil
}

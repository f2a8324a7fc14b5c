//go:build linux

package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
)

// keepOutput keeps what was recorded of a command's output as captures, redacted, and
// gives what names them. What cannot be kept is counted.
func (e *Engine) keepOutput(rec *meta.Sandbox, c cleaner, end ending, keep int64) (out []format.Output) {
	for _, r := range end.Output {
		text, dropped := c.output(r, keep)
		o := format.Output{Stream: streamName(r.Stream, end.TTY), Bytes: int64(len(text)), Dropped: dropped}
		if len(text) > 0 {
			var err error
			if o.Blob, err = e.Ledger.WriteBlob(format.Sandbox(rec.ID), text); err != nil {
				e.Logger.Error("the output of a command is not kept", "sandbox", rec.Name, "err", err)
				o.Blob, o.Bytes, o.Dropped = "", 0, r.Total
			}
		}
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b format.Output) int { return strings.Compare(b.Stream, a.Stream) })
	return out
}

// output gives what of a stream is kept, without secrets, and how many bytes were dropped
// from its middle, where a line says so. Redaction sees it as one stream: where that has a
// gap, what begins before the gap is left out, and before the rest it reads so much more
// that no secret which began in the gap reaches it.
func (c cleaner) output(r wire.Recorded, keep int64) (text []byte, dropped int64) {
	switch {
	case r.Total == 0:
		return nil, 0
	case keep <= 0 || c.r == nil:
		return nil, r.Total
	case r.Whole() && r.Total <= keep:
		return c.r.Bytes(slices.Concat(r.Head, r.Tail)), 0
	}
	half := int(keep / 2)
	head := r.Head[:min(half, len(r.Head))]
	tail := r.Tail[max(0, len(r.Tail)-(int(keep)-half)):]
	before := r.Tail[:len(r.Tail)-len(tail)]
	dropped = r.Total - int64(len(head)+len(tail))

	s := c.r.Stream()
	text = s.Append(nil, head)
	if r.Whole() {
		s.Append(nil, r.Head[len(head):])
	} else {
		s = c.r.Stream()
		if 2*c.r.Reach() > len(before) {
			return fmt.Appendf(text, gap, dropped+int64(len(tail))), dropped + int64(len(tail))
		}
	}
	s.Append(nil, before)
	text = fmt.Appendf(text, gap, dropped)
	return s.Finish(s.Append(text, tail)), dropped
}

// gap is the line that stands where output was dropped.
const gap = "\n[%d bytes are not kept here]\n"

func streamName(t wire.FrameType, tty bool) string {
	switch {
	case tty:
		return "terminal"
	case t == wire.FrameStderr:
		return "stderr"
	}
	return "stdout"
}

// changesOf names the paths that a capture found changed.
func changesOf(c cleaner, t taken) (out []format.Change) {
	if len(t.paths) == 0 {
		return nil
	}
	before := t.before() // nil: what was there is not known
	room := limit.RecordPaths
	for i, p := range t.paths {
		one := format.Change{Change: "changed", Path: c.clean(p)}
		if room -= written(one.Path); i == limit.RecordChanges || room < 0 {
			break
		}
		if t.gone[p] {
			one.Change = "removed"
		} else if before != nil {
			if _, err := before.Lookup(p); fault.Is(err, fault.NotFound) {
				one.Change = "added"
			}
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b format.Change) int { return strings.Compare(a.Path, b.Path) })
	return out
}

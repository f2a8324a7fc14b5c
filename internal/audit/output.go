package audit

import (
	"fmt"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
)

// gap is the line in place of dropped output.
const gap = "\n[%d bytes omitted]\n"

// redactOutput returns keep bytes of a stream, redacted, and how many bytes were dropped from its middle, where a
// line says so. It redacts the output as one stream. If the stream has a gap, a secret that starts before the gap is
// omitted. After the gap, redaction starts so far before the kept bytes that no secret that started in the gap
// reaches them.
func (c Cleaner) redactOutput(r wire.Recorded, keep int64) (text []byte, dropped int64) {
	switch {
	case r.Total == 0:
		return nil, 0
	case keep <= 0 || c.redactor == nil:
		return nil, r.Total
	case r.Whole() && r.Total <= keep:
		return c.redactor.Bytes(slices.Concat(r.Head, r.Tail)), 0
	}
	half := int(keep / 2)
	head := r.Head[:min(half, len(r.Head))]
	tail := r.Tail[max(0, len(r.Tail)-(int(keep)-half)):]
	before := r.Tail[:len(r.Tail)-len(tail)]
	dropped = r.Total - int64(len(head)+len(tail))

	s := c.redactor.Stream()
	text = s.Append(nil, head)
	if r.Whole() {
		s.Append(nil, r.Head[len(head):])
	} else {
		s = c.redactor.Stream()
		if 2*c.redactor.Reach() > len(before) {
			return fmt.Appendf(text, gap, dropped+int64(len(tail))), dropped + int64(len(tail))
		}
	}
	s.Append(nil, before)
	text = fmt.Appendf(text, gap, dropped)
	return s.Finish(s.Append(text, tail)), dropped
}

// streamName returns the name of an output stream in a record.
func streamName(t wire.FrameType, tty bool) string {
	switch {
	case tty:
		return "terminal"
	case t == wire.FrameStderr:
		return "stderr"
	}
	return "stdout"
}

//go:build linux && (amd64 || arm64)

package keeper

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/client/wire"
)

// TestRecording_KeepsBeginningAndEnd checks that the recorded beginning and end are those of the output, however it was
// split into writes, and that no byte is recorded twice.
func TestRecording_KeepsBeginningAndEnd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		keep := rapid.SampledFrom([]int64{0, 1, 2, 7, 1000, 256 << 10, 1 << 20}).Draw(t, "keep")
		o := newOutput(new(buffers))
		o.record.keep = keep
		wrote := map[wire.FrameType][]byte{}
		pos := int64(0)
		for range rapid.IntRange(0, 40).Draw(t, "pieces") {
			stream := rapid.SampledFrom([]wire.FrameType{wire.FrameStdout, wire.FrameStderr}).Draw(t, "stream")
			p := make([]byte, rapid.SampledFrom([]int{0, 1, 3, 999, 60 << 10, pumpSize, 200 << 10}).Draw(t, "size"))
			patterned(p, pos)
			pos += int64(len(p))
			o.add(stream, bytes.Clone(p))
			wrote[stream] = append(wrote[stream], p...)
		}
		var got []wire.Recorded
		for _, one := range o.recorded() {
			for _, p := range one.Payloads() {
				var err error
				if got, err = wire.AddRecorded(got, p); err != nil {
					t.Fatal(err)
				}
			}
		}
		maps.DeleteFunc(wrote, func(_ wire.FrameType, p []byte) bool { return len(p) == 0 })
		got = slices.DeleteFunc(got, func(r wire.Recorded) bool { return r.Total == 0 })
		if len(got) != len(wrote) {
			t.Fatalf("recorded %d streams of %d", len(got), len(wrote))
		}
		for _, one := range got {
			all := wrote[one.Stream]
			if one.Total != int64(len(all)) || !bytes.HasPrefix(all, one.Head) || !bytes.HasSuffix(all, one.Tail) {
				t.Fatalf("of %d bytes, the recorded %d and %d are wrong", len(all), len(one.Head), len(one.Tail))
			}
			want := 0
			if keep > 0 {
				want = min(len(all), int(keep)+recordContext)
			}
			if n := len(one.Head) + len(one.Tail); n != want {
				t.Fatalf("recorded %d bytes of %d, want %d", n, len(all), want)
			}
		}
	})
}

func BenchmarkRecording(b *testing.B) {
	o := newOutput(new(buffers))
	o.record.keep = 256 << 10
	b.SetBytes(pumpSize)
	p := o.buffers.get()
	for b.Loop() {
		if kept, _ := o.add(wire.FrameStdout, p); kept {
			p = o.buffers.get()
		}
	}
}

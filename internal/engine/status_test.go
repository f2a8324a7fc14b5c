//go:build linux

package engine

import (
	"slices"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/rootfs"
)

// forgetful is a driver that leaves something out.
type forgetful struct {
	rootfs.Driver
	left []rootfs.LeftOut
}

func (f forgetful) LeftOut(rootfs.Live) []rootfs.LeftOut { return f.left }

func TestStatusSaysWhatIsLeftOut(t *testing.T) {
	h := newHome(t)
	h.Drivers["copy"] = forgetful{h.Drivers["copy"], []rootfs.LeftOut{{Path: "/a\xff", Why: "its name is not UTF-8"}}}
	h.onDir("a")
	st, err := h.Status(ctx, "a")
	want := []wire.LeftOut{{Path: "/a\ufffd", Why: "its name is not UTF-8"}}
	if err != nil || !slices.Equal(st.LeftOut, want) {
		t.Errorf("left out: %v, %v; want %v", st.LeftOut, err, want)
	}
}

//go:build linux

package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
)

// forgetful is a driver that leaves out a path.
type forgetful struct {
	rootfs.Driver
	left []rootfs.LeftOut
}

func (f forgetful) LeftOut(rootfs.Live) []rootfs.LeftOut { return f.left }

func TestStatus_ListsOmittedPaths(t *testing.T) {
	h := newHome(t)
	h.Drivers["copy"] = forgetful{h.Drivers["copy"], []rootfs.LeftOut{{Path: "/a\xff", Why: "its name is not UTF-8"}}}
	h.onDir("a")
	st, err := h.Status(ctx, "a")
	want := []wire.LeftOut{{Path: "/a\ufffd", Why: "its name is not UTF-8"}}
	if err != nil || !slices.Equal(st.LeftOut, want) {
		t.Errorf("left out: %v, %v; want %v", st.LeftOut, err, want)
	}
}

func TestStatus_ReportsChangedHost(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	print := "as it was"
	h.HostPrint = func() string { return print }
	err = h.DB.UpdateSandbox(ctx, rec.ID, func(r *meta.Sandbox) error {
		r.Host, r.HostPrint = true, print
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, changed := range []bool{false, true} {
		if changed {
			print = "as it is now"
		}
		st, err := h.Status(ctx, "a")
		said := strings.Contains(strings.Join(st.Notices, "\n"), "files of the host have changed")
		if err != nil || said != changed {
			t.Errorf("changed %v: notices %q, %v", changed, st.Notices, err)
		}
	}
}

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

func TestReadiness_KeepsResultsAndHidesDetails(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	var result error
	checks := 0
	r := &readiness{base: t.Context(), log: slog.New(slog.NewTextHandler(&out, nil)),
		check: func(context.Context) error { checks++; return result }}
	again := func() error { r.until = time.Time{}; return r.ready(t.Context()) }
	for range 3 {
		if err := r.ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if checks != 1 {
		t.Errorf("%d checks", checks)
	}
	for _, result = range []error{fault.New(fault.Unsupported, "secret detail"), errors.New("another secret detail")} {
		if err := again(); !fault.Is(err, fault.Unavailable) || err.Error() != "the daemon is not ready" {
			t.Errorf("%v", err)
		}
	}
	result = nil
	if err := again(); err != nil || strings.Count(out.String(), "secret detail") != 2 ||
		!strings.Contains(out.String(), "ready again") {
		t.Errorf("%v, log %s", err, out.String())
	}
	r.stopping.Store(true)
	if err := r.ready(t.Context()); !fault.Is(err, fault.Unavailable) || err.Error() != "the daemon is stopping" {
		t.Error(err)
	}
}

func TestDriverWorks(t *testing.T) {
	t.Parallel()
	report := wire.ProbeReport{Items: []wire.ProbeItem{
		{Group: "tiers", Name: "btrfs", OK: true}, {Group: "drivers", Name: "overlay", Detail: "refused", Remedy: "mend it"},
		{Group: "drivers", Name: "copy", OK: true}, {Group: "drivers", Name: "btrfs", Unknown: true},
	}}
	for name, want := range map[string]fault.Kind{"": "", "auto": "", "copy": "", "overlay": fault.Unsupported,
		"btrfs": fault.Unavailable} {
		if err := driverWorks(report, name); want == "" && err != nil || want != "" && !fault.Is(err, want) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := driverWorks(wire.ProbeReport{}, ""); !fault.Is(err, fault.Unsupported) {
		t.Error(err)
	}
}

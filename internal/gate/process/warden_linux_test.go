//go:build linux && (amd64 || arm64)

package process

import (
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
)

func TestDue(t *testing.T) {
	t.Parallel()
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	phases := []phase{{digest: "a", until: t0}, {digest: "b", until: t0.Add(time.Minute)}, {digest: "c"}}
	for after, want := range map[time.Duration]string{-time.Hour: "a", -1: "a", 0: "b", time.Second: "b", time.Minute: "c", time.Hour: "c"} {
		if got := due(phases, t0.Add(after)); got.digest != want {
			t.Errorf("after %v: %s, want %s", after, got.digest, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	p, err := policy.Merge()
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := p.Digest()
	if err != nil {
		t.Fatal(err)
	}
	good := plan.Phase{Policy: string(text), Digest: digest}
	ends := good
	ends.Until = time.Now().Add(time.Hour)
	if _, err := parse([]plan.Phase{ends, good}); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		phases []plan.Phase
		want   fault.Kind
	}{
		"none":              {nil, fault.Internal},
		"all end":           {[]plan.Phase{ends}, fault.Internal},
		"no policy":         {[]plan.Phase{{Digest: digest}}, fault.Corrupt},
		"another digest":    {[]plan.Phase{{Policy: string(text), Digest: "sha256:00"}}, fault.Corrupt},
		"a changed policy":  {[]plan.Phase{{Policy: string(text) + " ", Digest: digest}}, fault.Corrupt},
		"a bad one at last": {[]plan.Phase{ends, {Policy: "{}", Digest: digest}}, fault.Corrupt},
	} {
		if _, err := parse(c.phases); !fault.Is(err, c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

package daemon

import (
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

func TestDefaults_FillOnlyWhatIsMissing(t *testing.T) {
	t.Parallel()
	d := Defaults{Driver: "copy", KeepRecent: 7, KeepFor: time.Hour}
	for name, tc := range map[string]struct {
		req    wire.CreateRequest
		driver string
		recent int
		ms     int64
	}{
		"nothing":   {wire.CreateRequest{}, "copy", 7, 3_600_000},
		"all":       {wire.CreateRequest{Driver: "auto", KeepRecent: 1, KeepForMS: 2}, "auto", 1, 2},
		"workspace": {wire.CreateRequest{Tier: "workspace"}, "", 7, 3_600_000},
		"a fork":    {wire.CreateRequest{From: wire.Source{Kind: wire.SourceSandbox}}, "", 0, 0},
	} {
		got := d.fill(tc.req)
		if got.Driver != tc.driver || got.KeepRecent != tc.recent || got.KeepForMS != tc.ms {
			t.Errorf("%s: %q, %d, %d", name, got.Driver, got.KeepRecent, got.KeepForMS)
		}
	}
	if got := (Defaults{}).fill(wire.CreateRequest{}); got.Driver != "" || got.KeepRecent != 0 || got.KeepForMS != 0 {
		t.Errorf("no defaults: %+v", got)
	}
}

package registry_test

import (
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/registry"
)

var fixed = time.Unix(1, 0)

func TestReferences(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]registry.Reference{
		"ghcr.io/team/layers":         {Host: "ghcr.io", Repository: "team/layers"},
		"ghcr.io/team/layers:one":     {Host: "ghcr.io", Repository: "team/layers", Tag: "one"},
		"localhost:5000/layers":       {Host: "localhost:5000", Repository: "layers"},
		"localhost/layers":            {Host: "localhost", Repository: "layers"},
		"127.0.0.1:5000/a/b/c":        {Host: "127.0.0.1:5000", Repository: "a/b/c"},
		"localhost.evil.org/layers":   {Host: "localhost.evil.org", Repository: "layers"},
		"127.0.0.1.evil.org:1/layers": {Host: "127.0.0.1.evil.org:1", Repository: "layers"},
	} {
		got, err := registry.Parse(s)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
		if local := !strings.Contains(s, "ghcr") && !strings.Contains(s, "evil"); got.Local() != local {
			t.Errorf("%s is local: %v", s, got.Local())
		}
	}
	for _, s := range []string{"", "layers", "team/layers", "ghcr.io/", "ghcr.io/Team", "https://ghcr.io/x",
		"ghcr.io/x@sha256:" + strings.Repeat("0", 64), "user:pw@ghcr.io/x", "ghcr.io/../x", "ghcr.io/x:\x1b", "ghcr.io/x?y=z",
		"ghcr.io/x#y"} {
		if _, err := registry.Parse(s); !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %v", s, err)
		}
	}
}

package plan

import (
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/limit"
)

func TestDecide_ReportsTooFewDescriptors(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		config Config
		files  uint64
		weak   bool
	}{
		"enough":         {Config{Tier: TierProcess, Trace: true}, limit.InitFiles, false},
		"too few":        {Config{Tier: TierProcess, Trace: true}, 1024, true},
		"unknown number": {Config{Tier: TierProcess, Trace: true}, 0, true},
		"no programs":    {Config{Tier: TierProcess}, 1024, false},
		"supervised":     {Config{Tier: TierSupervised, Phases: []Phase{{}}, Journal: "/j"}, 1024, true},
		"own kernel":     {Config{Tier: TierGvisor, Trace: true, Phases: []Phase{{}}, Journal: "/j"}, 1024, false},
	} {
		tc.config.Caller = Caller{UID: 1000, GID: 1000}
		_, e, err := Decide(tc.config, Facts{OpenFiles: tc.files, Landlock: 7})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var lack string
		for _, i := range e.Lacks() { // a strong policy refuses these
			if i.Name == Descriptors {
				lack = i.Detail
			}
		}
		if (lack != "") != tc.weak {
			t.Errorf("%s: %q", name, lack)
		}
		if tc.weak && tc.files > 0 &&
			(!strings.Contains(lack, "RLIMIT_NOFILE is 1024") || !strings.Contains(lack, "ulimit -Hn 9216")) {
			t.Errorf("%s: the detail is %q", name, lack)
		}
	}
}

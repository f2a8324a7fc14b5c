//go:build linux && (amd64 || arm64)

package escape_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

// corpus is the state that the trials of one test share.
type corpus struct {
	tools    string
	settings []setting
	holds    []plan.Enforced // what each setting enforces on a root that is not hostile
}

// newCorpus skips the test if the host lacks the tier of a setting.
func newCorpus(t testing.TB, all []setting) *corpus {
	t.Helper()
	needsStatic(t)
	c := &corpus{tools: tools(t, "/var/tmp")}
	if err := c.add(t, all); err != nil {
		t.Skipf("needs gvisor: %v", err)
	}
	return c
}

// add starts a root that is not hostile in each setting, and adds the settings to the corpus. It returns an error if
// the host lacks tier gvisor.
func (c *corpus) add(t testing.TB, all []setting) error {
	t.Helper()
	for _, s := range all {
		x := newTrial(t, s, c.tools)
		ctx, cancel := context.WithTimeout(t.Context(), rootsPatience)
		b, e, err := box.Start(ctx, programtest.Programs(), x.config)
		cancel()
		if s.tier == plan.TierGvisor && fault.Is(err, fault.Unsupported) {
			return err
		}
		if err != nil {
			log, _ := os.ReadFile(filepath.Join(x.config.RunDir, "keeper.log"))
			t.Fatalf("%s, on a root that is not hostile: %v\n%s", s.name, err, log)
		}
		x.was = e
		x.inspect(t, b, nil)
		x.stop(t, b)
		b.Close()
		x.out.unharmed(t)
		c.settings, c.holds = append(c.settings, s), append(c.holds, e)
	}
	return nil
}

// rare limits the trials in tier gvisor, where each start is that of a kernel: one program in that many is tried there.
const rare = 6

// pick returns the setting for a number. The settings of tier gvisor, which come last, share one number in rare; the
// others share the rest.
func pick(all []setting, number int) int {
	quick := slices.IndexFunc(all, func(s setting) bool { return s.tier == plan.TierGvisor })
	switch {
	case quick < 0:
		return number % len(all)
	case number%rare == rare-1:
		return quick + number/rare%(len(all)-quick)
	}
	return (number - number/rare) % quick
}

// TestPick_DrawsAllSettingsAndGvisorRarely covers all values of the 7 bits of a program's first byte that select the
// setting.
func TestPick_DrawsAllSettingsAndGvisorRarely(t *testing.T) {
	t.Parallel()
	gvisor := setting{tier: plan.TierGvisor}
	for _, all := range [][]setting{settings(), append(settings(), gvisor), append(settings(), gvisor, gvisor)} {
		drawn := make([]int, len(all))
		kernels := 0
		for n := range 128 {
			i := pick(all, n)
			drawn[i]++
			if all[i].tier == plan.TierGvisor {
				kernels++
			}
		}
		if slices.Contains(drawn, 0) || kernels > 128/rare || (kernels > 0) != (len(all) > len(settings())) {
			t.Errorf("of %d settings, each is drawn %v times, gvisor %d", len(all), drawn, kernels)
		}
	}
}

// trial returns a new trial in the i-th setting.
func (c *corpus) trial(t testing.TB, i int) *trial {
	t.Helper()
	x := newTrial(t, c.settings[i], c.tools)
	x.was = c.holds[i]
	return x
}

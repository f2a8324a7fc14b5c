package meta

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestFindings_ProvidedProtectionIsFinal(t *testing.T) {
	t.Parallel()
	d := open(t)
	has := func(kernel string) Finding { return Finding{Protection: "user", On: "ext4", Kernel: kernel} }
	lacks := func(why, kernel string) Finding {
		return Finding{Protection: "user", On: "ext4", Lacks: why, Kernel: kernel}
	}
	other := Finding{Protection: "user", On: "nfs4", Lacks: "invalid argument", Kernel: "6.1"}
	for _, step := range []struct {
		found, want Finding
	}{
		{lacks("first", "5.10"), lacks("first", "5.10")},
		{lacks("again", "5.10"), lacks("first", "5.10")}, // decided once
		{lacks("newer", "6.1"), lacks("newer", "6.1")},   // by another kernel
		{has("6.1"), has("6.1")},
		{lacks("older", "5.10"), has("6.1")},
		{has("6.2"), has("6.1")},
	} {
		got := must(d.AddFindings(t.Context(), []Finding{step.found, other}))(t)
		if want := []Finding{step.want, other}; !slices.Equal(got, want) ||
			!slices.Equal(must(d.Findings(t.Context()))(t), want) {
			t.Errorf("after %+v: %+v", step.found, got)
		}
	}
}

func TestFindings_KeepAllOfConcurrentStarts(t *testing.T) {
	t.Parallel()
	d := open(t)
	const starts = 8
	var all sync.WaitGroup
	for i := range starts {
		all.Go(func() {
			mine := Finding{Protection: fmt.Sprint("own", i)}
			shared := Finding{Protection: "shared"}
			if i%2 == 0 {
				shared.Lacks = "EINVAL"
			}
			if _, err := d.AddFindings(t.Context(), []Finding{shared, mine}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	got := must(d.Findings(t.Context()))(t)
	if len(got) != starts+1 || !slices.Contains(got, Finding{Protection: "shared"}) {
		t.Errorf("%+v", got)
	}
}

func TestFindings_RefuseDamage(t *testing.T) {
	t.Parallel()
	d := open(t)
	ok(t, d.SetSetting(t.Context(), settingFindings, "{"))
	if _, err := d.AddFindings(t.Context(), []Finding{{Protection: "user"}}); !fault.Is(err, fault.Corrupt) {
		t.Errorf("%v", err)
	}
}

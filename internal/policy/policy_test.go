package policy

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestParseLimits(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Limits{
		"":                                  {},
		"memory=4GiB,pids=512":              {MemoryBytes: 4 << 30, PIDs: 512},
		"disk=1.5GB":                        {DiskBytes: 1_500_000_000},
		"memory=1048576":                    {MemoryBytes: 1 << 20},
		"pids=1,memory=2M,disk=3TiB":        {PIDs: 1, MemoryBytes: 2 << 20, DiskBytes: 3 << 40},
		"memory=9223372036854775807,pids=2": {MemoryBytes: 1<<63 - 1, PIDs: 2},
		"cpus=1.5,time=90s,output=1MiB":     {MilliCPUs: 1500, Time: 90 * time.Second, OutputBytes: 1 << 20},
		"files=1024,cpus=0.001,time=1h1.5s": {OpenFiles: 1024, MilliCPUs: 1, Time: time.Hour + 1500*time.Millisecond},
	} {
		got, err := ParseLimits(in)
		if err != nil || got != want {
			t.Errorf("ParseLimits(%q) = %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{
		"memory", "memory=", "memory=0", "memory=-1GiB", "memory=4GiB,memory=5GiB", "mem=4GiB", "pids=0", "pids=1.5",
		"pids=99999999999", "memory=1e3", "memory=0x10", "memory=NaN", "memory=Inf", "memory=9999999TiB", "memory=4GiB,", ",",
		"memory=4 GiB",
		"memory=+1GiB", "memory=1.5", "memory=1.5B", "memory=.", "memory=..1KiB", "memory=1_000",
		"memory=9223372036854775808", "memory=8388608TiB", "=1", "memory==1", "MEMORY=1GiB",
		"cpus=0", "cpus=-1", "cpus=1e3", "cpus=0.0001", "cpus=1.", "cpus=.5", "cpus=1000000", "cpus=Inf", "time=1",
		"time=999ms", "time=-1h", "time=+1h", "time=1d", "output=0",
		"files=0", "files=-1", "files=1.5", "files=2147483648", "files=1,files=1",
	} {
		if got, err := ParseLimits(in); !fault.Is(err, fault.Invalid) || got != (Limits{}) {
			t.Errorf("ParseLimits(%q) = %+v, %v; want a refusal", in, got, err)
		}
	}
}

func TestLimitsRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := Limits{
			MemoryBytes: rapid.Int64Min(0).Draw(t, "memory"), PIDs: int64(rapid.Int32Min(0).Draw(t, "pids")),
			DiskBytes: rapid.Int64Min(0).Draw(t, "disk"),
			MilliCPUs: rapid.Int64Range(0, 999_999_999).Draw(t, "cpus"), OutputBytes: rapid.Int64Min(0).Draw(t, "output"),
			OpenFiles: int64(rapid.Int32Min(0).Draw(t, "files")),
			Time:      time.Duration(rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Min(int64(time.Second))).Draw(t, "time")),
		}
		if got, err := ParseLimits(want.String()); err != nil || got != want {
			t.Fatalf("%q is parsed as %+v, %v; want %+v", want.String(), got, err, want)
		}
	})
}

func TestParseEnv(t *testing.T) {
	t.Parallel()
	if k, v, err := ParseEnv("A_1=b=c"); k != "A_1" || v != "b=c" || err != nil {
		t.Errorf("got %q %q %v", k, v, err)
	}
	for _, in := range []string{"", "=", "A", "1A=x", "A-B=x", "A=\x00", "Ä=x"} {
		if _, _, err := ParseEnv(in); !fault.Is(err, fault.Invalid) {
			t.Errorf("ParseEnv(%q): %v, want a refusal", in, err)
		}
	}
}

func TestParseNet(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Net{"": NetOff, "off": NetOff, "host": NetHost, "rules": NetRules} {
		if got, err := ParseNet(in); got != want || err != nil {
			t.Errorf("ParseNet(%q) = %q, %v", in, got, err)
		}
	}
	if _, err := ParseNet("none"); !fault.Is(err, fault.Invalid) {
		t.Errorf("ParseNet(none): %v, want a refusal", err)
	}
}

func TestParseLimits_SuggestsKnownLimit(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"mem=1GiB": "mean memory?", "PIDS=5": "mean pids?",
		"processes=5": "mean pids?", "quota=5": "mean disk?", "CPU=2": "mean cpus?", "timeout=1h": "mean time?",
		"nofile=9": "mean files?", "stdout=1": "mean output?", "gpus=2": "memory, cpus, pids"} {
		_, err := ParseLimits(in)
		if hint := fault.HintOf(err); !fault.Is(err, fault.Invalid) || !strings.Contains(hint, want) {
			t.Errorf("%s: %v, hint %q; want %q", in, err, hint, want)
		}
	}
}

func FuzzParseLimits(f *testing.F) {
	for _, s := range []string{"", "memory=4GiB,pids=512,disk=1.5GB", "memory=1", "disk=0.1TiB", "pids=2147483647",
		"memory=", ",,", "cpus=1.5,time=30m,output=1MiB,files=9", "cpus=999999.999", "memory=9223372036854775807"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ParseLimits(s)
		if err != nil {
			if l != (Limits{}) || !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
				t.Fatalf("%q: %+v, %v, hint %q", s, l, err, fault.HintOf(err))
			}
			return
		}
		if again, err := ParseLimits(l.String()); again != l || err != nil {
			t.Fatalf("%q is parsed as %+v, whose text %q is parsed as %+v, %v", s, l, l.String(), again, err)
		}
	})
}

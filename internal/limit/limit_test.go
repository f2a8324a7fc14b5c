package limit

import "testing"

func TestAmount(t *testing.T) {
	t.Parallel()
	for want, in := range map[string]Bound{
		"1 entries":         {Value: 1, Unit: "entries"},
		"100,000 entries":   {Value: 100_000, Unit: "entries"},
		"1,234,567 entries": {Value: 1_234_567, Unit: "entries"},
		"64 MiB":            {Value: 64 << 20, Unit: "bytes"},
		"1,023 bytes":       {Value: 1023, Unit: "bytes"},
		"1,025 bytes":       {Value: 1025, Unit: "bytes"},
		"5 seconds":         {Value: 5, Unit: "seconds"},
	} {
		if got := amount(in.Value, in.Unit); got != want {
			t.Errorf("amount(%d, %q) = %q, want %q", in.Value, in.Unit, got, want)
		}
	}
}

func TestEntries_LeaveHalfOfTheMemory(t *testing.T) {
	t.Parallel()
	for memory, want := range map[int64]int64{0: 1, 256 << 20: 559_240, 2 << 30: 4_473_924, 1 << 40: LiveEntries} {
		if got := Entries(memory); got != want || got > 1 && got*LiveEntry > memory/2 {
			t.Errorf("with %d bytes: %d entries, want %d", memory, got, want)
		}
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		most int
		want string
	}{
		{"short", 5, "short"},
		{"longer", 5, "lo..."},
		{"a\u00e9\u00e9\u00e9\u00e9", 5, "a..."}, // in the middle of a character
		{"", 5, ""},
	} {
		if got := Cut(c.in, c.most); got != c.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", c.in, c.most, got, c.want)
		}
	}
}

package policy

import (
	"math"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/coppice-dev/coppice/internal/fault"
)

// limit is a key of the limits section: how it is parsed and formatted, and its field in Limits. All values are whole
// numbers: bytes, nanoseconds, or thousandths of a processor.
type limit struct {
	name, doc string
	shape     func() shape[int64]
	read      func(string) (int64, error) // parses the value of a flag
	write     func(int64) any             // formats a value that both shape and read accept
	in        func(*Limits) *int64
}

// limits returns the keys of the limits section, in the order for users.
func limits() []limit {
	count := func(n int64) any { return n }
	counted := func(s string) (int64, error) {
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil || n < 1 {
			return 0, fault.New(fault.Invalid, "invalid number %q: must be 1 or more", s)
		}
		return n, nil
	}
	size := func(n int64) any { return FormatBytes(n) }
	return []limit{
		{"memory", "Memory of all processes, such as 4GiB.", sizes, ParseBytes, size,
			func(l *Limits) *int64 { return &l.MemoryBytes }},
		{"cpus", "Number of processors, such as 1.5.", cpus, parseCPUs, func(n int64) any { return float64(n) / 1000 },
			func(l *Limits) *int64 { return &l.MilliCPUs }},
		{"pids", "Number of processes and threads.", func() shape[int64] { return whole(1, math.MaxInt32) }, counted, count,
			func(l *Limits) *int64 { return &l.PIDs }},
		{"disk", "Disk space that the sandbox uses in addition to its base, such as 10GiB.", sizes, ParseBytes, size,
			func(l *Limits) *int64 { return &l.DiskBytes }},
		{"time", "Wall time of one command, such as 30m.", times, parseTime,
			func(n int64) any { return time.Duration(n).String() }, func(l *Limits) *int64 { return (*int64)(&l.Time) }},
		{"output", "Output of one command, such as 100MiB.", sizes, ParseBytes, size,
			func(l *Limits) *int64 { return &l.OutputBytes }},
		{"files", "Open files per process.", func() shape[int64] { return whole(1, math.MaxInt32) },
			counted, count, func(l *Limits) *int64 { return &l.OpenFiles }},
	}
}

// Said returns l as in a document, without unlimited entries.
func (l Limits) Said(at Origin) map[string]Said[int64] {
	var out map[string]Said[int64]
	for _, one := range limits() {
		if v := *one.in(&l); v != 0 {
			if out == nil {
				out = map[string]Said[int64]{}
			}
			out[one.name] = Said[int64]{v, at}
		}
	}
	return out
}

// sizes is the shape of sizes that ParseBytes parses, without leading zeros.
func sizes() shape[int64] {
	s := parsed("a size such as 4GiB", schema{"type": []string{"string", "integer"}}, func(s string) (int64, error) {
		if len(s) > 1 && s[0] == '0' && s[1] != '.' {
			return 0, fault.New(fault.Invalid, "invalid size %q", s).WithHint("use a size such as 512MiB or 4GiB")
		}
		return ParseBytes(s)
	}, "!!str", "!!int")
	return matching(s, `^[0-9]+(\.[0-9]+)?(TiB|GiB|MiB|KiB|TB|GB|MB|kB|T|G|M|K|B)?$`)
}

func cpus() shape[int64] {
	return shape[int64]{schema{"type": "number", "exclusiveMinimum": 0}, "a number such as 1.5",
		scalar("!!int", "!!float"), func(r *reader, n *yaml.Node) (int64, bool) {
			v, err := parseCPUs(n.Value)
			if err != nil {
				r.wrong(n, fault.HintOf(err), "invalid number of processors %s", n.Value)
				return 0, false
			}
			return v, true
		}}
}

// cpusForm allows three decimal places: a thousandth of a processor is the smallest unit.
var cpusForm = compiled(`^(0|[1-9][0-9]{0,5})(\.[0-9]{1,3})?$`)

// parseCPUs parses a number of processors, and returns thousandths.
func parseCPUs(s string) (int64, error) {
	f, err := strconv.ParseFloat(s, 64)
	v := int64(math.Round(f * 1000))
	if err != nil || !cpusForm().MatchString(s) || v < 1 {
		return 0, fault.New(fault.Invalid, "invalid number of processors %q", s).WithHint("use a number such as 2 or 1.5")
	}
	return v, nil
}

func times() shape[int64] {
	return matching(text("a time such as 30m", parseTime), `^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$`)
}

// parseTime parses a duration of a second or more, and returns nanoseconds.
func parseTime(s string) (int64, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < time.Second || s[0] == '+' {
		return 0, fault.New(fault.Invalid, "invalid time %q: must be a second or more", s).
			WithHint("use a time such as 90s, 30m or 2h")
	}
	return int64(d), nil
}

// limitShape is the shape of the limits section.
func limitShape() shape[map[string]Said[int64]] {
	var fields []field[map[string]Said[int64]]
	for _, l := range limits() {
		fields = append(fields,
			key(l.name, l.doc, said(l.shape()), func(to *map[string]Said[int64], v Said[int64]) { (*to)[l.name] = v }))
	}
	return object(func(*reader, *yaml.Node) map[string]Said[int64] { return map[string]Said[int64]{} }, fields...)
}

// Package policy is what a sandbox may use, as pure data: limits, network,
// environment. Parsing is strict: an unknown key, a wrong unit or a value twice is
// an error that names the nearest right one. Any room may import it; it imports
// fault alone.
package policy

import (
	"math"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Net says what a sandbox can reach.
type Net string

// The nets.
const (
	NetOff  Net = "off"  // a network namespace with nothing but its own loopback
	NetHost Net = "host" // the host's network, as any program of its owner has it
)

// ParseNet reads a net; "" is NetOff.
func ParseNet(s string) (Net, error) {
	switch Net(s) {
	case "", NetOff:
		return NetOff, nil
	case NetHost:
		return NetHost, nil
	}
	return "", fault.New(fault.Invalid, "there is no network %q", s).WithHint("use --net off or --net host")
}

// Limits are what a sandbox may use at most; 0 is no limit.
type Limits struct {
	MemoryBytes int64
	PIDs        int64
	DiskBytes   int64
}

const limitsHint = "write limits as in: --limit memory=4GiB,pids=512"

// ParseLimits reads "memory=4GiB,pids=512,disk=10GiB"; "" is no limits.
func ParseLimits(s string) (l Limits, err error) {
	if s == "" {
		return l, nil
	}
	seen := map[string]bool{}
	for _, item := range strings.Split(s, ",") {
		key, value, ok := strings.Cut(item, "=")
		if !ok {
			return Limits{}, fault.New(fault.Invalid, "limit %q has no value", item).WithHint(limitsHint)
		}
		if seen[key] {
			return Limits{}, fault.New(fault.Invalid, "limit %s is given twice", key).WithHint(limitsHint)
		}
		seen[key] = true
		switch key {
		case "memory":
			l.MemoryBytes, err = ParseBytes(value)
		case "disk":
			l.DiskBytes, err = ParseBytes(value)
		case "pids":
			if l.PIDs, err = strconv.ParseInt(value, 10, 32); err != nil || l.PIDs < 1 {
				err = fault.New(fault.Invalid, "%q is not a number of processes", value)
			}
		default:
			return Limits{}, unknown(key)
		}
		if err != nil {
			return Limits{}, fault.New(fault.Invalid, "limit %s", key).Because(err).WithHint(limitsHint)
		}
	}
	return l, nil
}

// unknown is the error for a limit that there is not, with the one that was meant.
func unknown(key string) error {
	e := fault.New(fault.Invalid, "there is no limit %q", key)
	const all = "the limits are memory, pids and disk; " + limitsHint
	for right, words := range map[string][]string{
		"memory": {"mem", "ram", "memroy", "m"},
		"pids":   {"pid", "procs", "processes", "nproc", "p"},
		"disk":   {"space", "storage", "size", "quota", "d"},
	} {
		for _, w := range append(words, right) {
			if strings.EqualFold(w, strings.TrimSpace(key)) {
				return e.WithHint("did you mean %s? %s", right, all)
			}
		}
	}
	return e.WithHint(all)
}

// String writes limits as ParseLimits reads them.
func (l Limits) String() string {
	var out []string
	if l.MemoryBytes != 0 {
		out = append(out, "memory="+FormatBytes(l.MemoryBytes))
	}
	if l.PIDs != 0 {
		out = append(out, "pids="+strconv.FormatInt(l.PIDs, 10))
	}
	if l.DiskBytes != 0 {
		out = append(out, "disk="+FormatBytes(l.DiskBytes))
	}
	return strings.Join(out, ",")
}

var units = []struct {
	name string
	size int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3},
	{"T", 1 << 40}, {"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}, {"B", 1}, {"", 1},
}

// ParseBytes reads a positive size: "4GiB", "512MiB", "1.5GB", "1048576". As in
// docker, a bare K, M, G, T is binary.
func ParseBytes(s string) (int64, error) {
	for _, u := range units {
		num, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		if strings.Trim(num, "0123456789.") != "" {
			break
		}
		if n, err := strconv.ParseInt(num, 10, 64); err == nil && n > 0 && n <= math.MaxInt64/u.size {
			return n * u.size, nil
		}
		f, err := strconv.ParseFloat(num, 64)
		if err != nil || u.size == 1 || f*float64(u.size) < 1 || f*float64(u.size) >= math.MaxInt64 {
			break
		}
		return int64(f * float64(u.size)), nil
	}
	return 0, fault.New(fault.Invalid, "%q is not a size", s).WithHint("write a size as in 512MiB or 4GiB")
}

// FormatBytes writes a size so that ParseBytes reads the same.
func FormatBytes(n int64) string {
	for _, u := range units[:4] {
		if n%u.size == 0 {
			return strconv.FormatInt(n/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// ParseEnv splits KEY=VALUE. The key is a name as POSIX has it.
func ParseEnv(kv string) (key, value string, err error) {
	key, value, ok := strings.Cut(kv, "=")
	if !ok {
		return "", "", fault.New(fault.Invalid, "environment %q has no value", kv).WithHint("write it as in: --env KEY=VALUE")
	}
	for i, c := range []byte(key) {
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return "", "", fault.New(fault.Invalid, "%q is no name of an environment variable", key)
		}
	}
	if key == "" || strings.ContainsRune(value, 0) {
		return "", "", fault.New(fault.Invalid, "environment %q cannot be set", kv)
	}
	return key, value, nil
}

// Package policy defines what a sandbox may use, as pure data: limits, network, environment, files; the syntax of
// policy files, how several files are merged, and how a request is decided. Parsing is strict: an unknown key, a
// wrong unit or a duplicate value is an error that names the nearest valid one. It does no I/O. Every package may
// import it; it imports fault, redact and visible.
package policy

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Net is the network access of a sandbox.
type Net string

// The values of Net.
const (
	NetOff  Net = "off"  // a network namespace with nothing but its own loopback
	NetHost Net = "host" // the host's network, as for any program of its owner

	NetRules Net = "rules" // the destinations that rules allow; without rules, none
)

// ParseNet parses a Net; "" is NetOff.
func ParseNet(s string) (Net, error) {
	switch n := Net(s); n {
	case "":
		return NetOff, nil
	case NetOff, NetHost, NetRules:
		return n, nil
	}
	return "", fault.New(fault.Invalid, "unknown network %q", s).WithHint("use --net off, --net rules or --net host")
}

// Limits are the resource limits of a sandbox; 0 is unlimited.
type Limits struct {
	MemoryBytes int64
	PIDs        int64
	DiskBytes   int64
	MilliCPUs   int64
	Time        time.Duration // of one command
	OutputBytes int64         // of one command
	OpenFiles   int64         // of one process
}

const limitsHint = "for example: --limit memory=4GiB,pids=512,time=30m"

// ParseLimits parses "memory=4GiB,cpus=1.5,pids=512,disk=10GiB,time=30m,output=100MiB,files=1024"; every part is
// optional, and "" is unlimited.
func ParseLimits(s string) (l Limits, err error) {
	if s == "" {
		return l, nil
	}
	seen := map[string]bool{}
	for _, item := range strings.Split(s, ",") {
		key, value, ok := strings.Cut(item, "=")
		if !ok {
			return Limits{}, fault.New(fault.Invalid, "limit %q requires a value", item).WithHint(limitsHint)
		}
		if seen[key] {
			return Limits{}, fault.New(fault.Invalid, "limit %s is given twice", key).WithHint(limitsHint)
		}
		seen[key] = true
		i := slices.IndexFunc(limits(), func(one limit) bool { return one.name == key })
		if i < 0 {
			return Limits{}, unknown(key)
		}
		one := limits()[i]
		*one.in(&l), err = one.read(value)
		if err != nil {
			return Limits{}, fault.New(fault.Invalid, "limit %s", key).Because(err).WithHint(limitsHint)
		}
	}
	return l, nil
}

// unknown returns the error for an unknown limit, with the likely correct name.
func unknown(key string) error {
	e := fault.New(fault.Invalid, "unknown limit %q", key)
	const all = "the limits are memory, cpus, pids, disk, time, output and files; " + limitsHint
	for right, words := range map[string][]string{
		"memory": {"mem", "ram", "memroy", "m"},
		"cpus":   {"cpu", "cores", "core", "processors", "c"},
		"pids":   {"pid", "procs", "processes", "nproc", "p"},
		"disk":   {"space", "storage", "size", "quota", "d"},
		"time":   {"timeout", "wall", "duration", "t"},
		"output": {"out", "stdout", "log", "o"},
		"files":  {"file", "nofile", "open", "descriptors", "f"},
	} {
		for _, w := range append(words, right) {
			if strings.EqualFold(w, strings.TrimSpace(key)) {
				return e.WithHint("did you mean %s? %s", right, all)
			}
		}
	}
	return e.WithHint(all)
}

// String returns l in the form that ParseLimits parses.
func (l Limits) String() string {
	var out []string
	for _, one := range limits() {
		if v := *one.in(&l); v != 0 {
			out = append(out, one.name+"="+fmt.Sprint(one.write(v)))
		}
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

// ParseBytes parses a positive size: "4GiB", "512MiB", "1.5GB", "1048576". As in Docker, a bare K, M, G or T is binary.
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
	return 0, fault.New(fault.Invalid, "invalid size %q", s).WithHint("use a size such as 512MiB or 4GiB")
}

// FormatBytes formats a size as ParseBytes parses it.
func FormatBytes(n int64) string {
	for _, u := range units[:4] {
		if n%u.size == 0 {
			return strconv.FormatInt(n/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// ParseEnv splits KEY=VALUE. The key must be a name as defined by POSIX.
func ParseEnv(kv string) (key, value string, err error) {
	key, value, ok := strings.Cut(kv, "=")
	if !ok {
		return "", "", fault.New(fault.Invalid, "environment variable %q requires a value", kv).WithHint("for example: " +
			"--env KEY=VALUE")
	}
	for i, c := range []byte(key) {
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return "", "", fault.New(fault.Invalid, "invalid name of an environment variable %q", key)
		}
	}
	if key == "" || strings.ContainsRune(value, 0) {
		return "", "", fault.New(fault.Invalid, "cannot set environment variable %q", kv)
	}
	return key, value, nil
}

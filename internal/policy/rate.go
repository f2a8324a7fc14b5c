package policy

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Rate is a number of requests per second, minute or hour; the zero Rate is unlimited.
type Rate struct {
	Count int64
	Per   time.Duration
}

// rateUnits are the units of a rate, as in 10/s.
var rateUnits = []struct {
	name string
	per  time.Duration
}{{"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}}

const maxRate = 1_000_000

// ParseRate parses "10/s", "100/m", "1000/h".
func ParseRate(s string) (Rate, error) {
	count, unit, _ := strings.Cut(s, "/")
	for _, u := range rateUnits {
		if n, ok := number(count, maxRate); ok && n > 0 && unit == u.name {
			return Rate{n, u.per}, nil
		}
	}
	return Rate{}, fault.New(fault.Invalid, "invalid rate %q", s).WithHint("use a rate such as 10/s, 100/m or 1000/h")
}

// String returns r in the form that ParseRate parses.
func (r Rate) String() string {
	for _, u := range rateUnits {
		if r.Per == u.per {
			return strconv.FormatInt(r.Count, 10) + "/" + u.name
		}
	}
	return ""
}

// Compare compares rates by what they let pass; the zero Rate lets everything pass.
func (r Rate) Compare(o Rate) int {
	if r.Count == 0 || o.Count == 0 {
		return cmp.Compare(o.Count, r.Count)
	}
	if c := cmp.Compare(r.Count*int64(time.Hour/r.Per), o.Count*int64(time.Hour/o.Per)); c != 0 {
		return c
	}
	return cmp.Compare(r.Count, o.Count)
}

// number parses decimal digits without a leading zero, which some programs take for octal.
func number(s string, most int64) (int64, bool) {
	if s == "" || len(s) > 1 && s[0] == '0' || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n <= most
}

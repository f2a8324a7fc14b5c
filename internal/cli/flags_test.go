package cli

import (
	"errors"
	"testing"
	"time"
)

// FuzzTimes checks that a flag for times is either rejected as a usage error with a hint, or has a value that the
// daemon accepts.
func FuzzTimes(f *testing.F) {
	for _, s := range []string{"", "off", "quiet=200ms,max=2s", "quiet=,", "max=-1s", "quiet=1ns",
		"quiet=9223372036854775807ns", "max=2562047h48m", "30d", "1.5d", "-1d", "99999999999999d", "NaNd", "1e9d", "+Infd",
		"0s", "\x00d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := parseCapture(s)
		var misuse *usageError
		switch {
		case err != nil:
			if !errors.As(err, &misuse) || misuse.hint == "" {
				t.Errorf("%q: %v", s, err)
			}
		case c.QuietMS < 0 || c.MaxMS < 0 || c.Off && s != "off":
			t.Errorf("%q: %+v", s, c)
		}
		d, err := lifetime(s)
		switch {
		case err != nil:
			if !errors.As(err, &misuse) || misuse.hint == "" {
				t.Errorf("%q: %v", s, err)
			}
		case d < time.Millisecond && s != "":
			t.Errorf("%q: %s", s, d)
		}
	})
}

package box_test

import "flag"

// The tracer of these tests knows the registers of amd64 alone.
var _ = flag.Int("disturb.tries", 0, "of the tests of amd64 alone")

func disturbs([]string) (code int, ok bool) { return 0, false }

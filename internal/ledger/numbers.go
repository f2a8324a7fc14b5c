package ledger

import (
	"fmt"
	"strconv"
)

func itoa(i int) string { return strconv.Itoa(i) }

// pad formats a number so that names sort as numbers do.
func pad(n int64) string { return fmt.Sprintf("%016d", n) }

// atoi reads a nonnegative decimal number; 0 for anything else.
func atoi(s string) int64 {
	n, err := strconv.ParseUint(s, 10, 62)
	if err != nil {
		return 0
	}
	return int64(n)
}

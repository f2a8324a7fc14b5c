//go:build linux

package tournament

import (
	"bufio"
	"fmt"
	"os"
)

// roomForOne is the memory reserved for a candidate whose sandbox has no memory limit, in bytes.
const roomForOne = 256 << 20

// jobs returns the number of candidates to run concurrently: asked, or, if asked is 0, four per core and at least
// 8, because many only wait. It is limited to the available memory (0: unknown) at need bytes each, but is at
// least one.
func jobs(asked, candidates, cores int, available, need int64) int {
	n := asked
	if n == 0 {
		n = max(8, 4*cores)
		if available > 0 {
			n = int(min(int64(n), available/need))
		}
	}
	return max(1, min(n, candidates))
}

// memAvailable returns the memory available without swapping, in bytes, as estimated by the kernel; 0 if unknown.
func memAvailable() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kib int64
		if _, err := fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	return 0
}

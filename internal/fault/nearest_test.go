package fault

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	t.Parallel()
	options := []string{"memory", "pids", "disk", "web-1", "web-2", "Host"}
	for word, want := range map[string]string{
		"memory": "memory", "memroy": "memory", "MEMORY": "memory", "mem": "memory", "pid": "pids", "dsk": "disk",
		"idsk": "disk", "dpis": "disk",
		"web": "web-1", "web-3": "web-1", "host": "Host", "x": "", "": "", "cpu": "", strings.Repeat("m", 1<<20): "",
	} {
		if got := Nearest(word, options); got != want {
			t.Errorf("Nearest(%.20q) = %q, want %q", word, got, want)
		}
	}
}

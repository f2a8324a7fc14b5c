//go:build linux

package gitwork

import (
	"fmt"
	"testing"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/repo"
)

// client.Client must implement API.
var _ API = (*client.Client)(nil)

// TestTrusts_IsLinear uses many trusted paths and many marks, since clients and sandboxes determine their
// numbers.
func TestTrusts_IsLinear(t *testing.T) {
	t.Parallel()
	const n = 200_000
	paths, marks := make([]string, n), make([]repo.Mark, n)
	for i := range n {
		paths[i], marks[i].Path = fmt.Sprint("p", i), fmt.Sprint("p", n-i)
	}
	trusted, no := Trusts(false, paths), 0
	for _, m := range marks {
		if !trusted(m) {
			no++
		}
	}
	if no != 1 {
		t.Errorf("%d marks are not trusted, want 1", no)
	}
	if !Trusts(true, nil)(marks[0]) {
		t.Error("all marks are trusted, but one must not be")
	}
}

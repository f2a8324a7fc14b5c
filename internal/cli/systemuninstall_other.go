//go:build !linux

package cli

import (
	"context"
	"os"
)

// removeTree removes a directory.
func removeTree(_ context.Context, dir string) error { return os.RemoveAll(dir) }

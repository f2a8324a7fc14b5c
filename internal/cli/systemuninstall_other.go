//go:build !linux

package cli

import (
	"context"
	"os"
)

// removeTree removes a directory.
func removeTree(_ context.Context, dir string) error { return os.RemoveAll(dir) }

// lockHome takes no lock: no daemon runs here.
func lockHome(string) (release func(), err error) { return func() {}, nil }

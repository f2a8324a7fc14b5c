//go:build !linux

package cli

import (
	"context"
	"os"
)

// removeTree removes a directory.
func removeTree(_ context.Context, dir string) error { return os.RemoveAll(dir) }

// isMountPoint returns false: no daemon runs on this system, so no home exists.
func isMountPoint(string) (bool, error) { return false, nil }

// lockHome does nothing: no daemon runs on this system.
func lockHome(string) (release func(), err error) { return func() {}, nil }

//go:build !linux

package cli

import (
	"context"
	"os"
)

// removeTree removes a directory.
func removeTree(_ context.Context, dir string) error { return os.RemoveAll(dir) }

// isMountPoint reports false: no daemon runs here, and so there is no home.
func isMountPoint(string) (bool, error) { return false, nil }

// lockHome takes no lock: no daemon runs here.
func lockHome(string) (release func(), err error) { return func() {}, nil }

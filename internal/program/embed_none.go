//go:build linux && !embed

package program

import "embed"

// files is empty: this build finds the programs in a directory.
var files embed.FS

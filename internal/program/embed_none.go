//go:build linux && !embed

package program

import "embed"

// files has no programs: this build finds them in a directory.
var files embed.FS

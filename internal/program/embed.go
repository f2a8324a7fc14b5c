//go:build linux && embed

package program

import "embed"

// files are the programs, compressed by gzip, and SHA256SUMS, with the digests of what they
// unpack to. They are not in the source tree: scripts/build makes them.
//
//go:embed embedded/SHA256SUMS embedded/*.gz
var files embed.FS

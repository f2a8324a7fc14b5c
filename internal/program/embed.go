//go:build linux && embed

package program

import "embed"

// files contains the programs, compressed by gzip, and SHA256SUMS with the digests of the uncompressed programs. They
// are not in the source tree: scripts/build creates them.
//
//go:embed embedded/SHA256SUMS embedded/*.gz
var files embed.FS

package rootspec

import "strconv"

// SharedAt is the directory inside in which init mounts directories of the host that the sandbox needs and that no
// policy names: the objects of its git repository.
const SharedAt = "/run/coppice-git"

// ClientDir is the directory inside of the program coppice, on a mount of its own.
const ClientDir = "/run/coppice-bin"

// MaxShared is the maximum number of shared directories.
const MaxShared = 32

// SharedPath returns the path inside of the shared directory with index i.
func SharedPath(i int) string { return SharedAt + "/" + strconv.Itoa(i) }

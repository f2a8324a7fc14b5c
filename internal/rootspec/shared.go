package rootspec

import "strconv"

// SharedAt is the directory inside in which a box shows directories of the host that
// the sandbox needs and that no policy names: the objects of its git repository.
const SharedAt = "/run/coppice-git"

// MaxShared bounds how many there are.
const MaxShared = 32

// SharedPath is where inside the i-th of them is shown, counted from 0.
func SharedPath(i int) string { return SharedAt + "/" + strconv.Itoa(i) }

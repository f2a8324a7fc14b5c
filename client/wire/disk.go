package wire

// DiskUse is what a home takes on the disk: the blocks of its files (st_blocks of 512 bytes). A file of several names,
// as in merged layers, counts once. What a file system shares below files, as reflinks, counts in each file.
type DiskUse struct {
	Bytes       int64         `json:"bytes"`             // the sum of the parts
	Reclaimable int64         `json:"reclaimable"`       // how much of it a garbage collection frees, at least
	Parts       []DiskPart    `json:"parts"`             // by what it is for, always in the same order
	Sandboxes   []DiskSandbox `json:"sandboxes"`         // by name
	Partial     bool          `json:"partial,omitempty"` // something could not be read, or was too much, and is not counted
}

// The kinds of a DiskPart, in their order.
const (
	DiskBases   = "bases"   // layers of what sandboxes start from: copies of the host, images, trees of commits
	DiskLayers  = "layers"  // layers of the histories of sandboxes
	DiskLive    = "live"    // what live roots changed since they were mounted
	DiskMemory  = "memory"  // memory images
	DiskCaches  = "caches"  // indexes, masks
	DiskAudit   = "audit"   // the audit log, and journals that are not in it yet
	DiskRemoved = "removed" // what was removed and is not freed yet: unused layers, directories of removed sandboxes
	DiskLost    = "lost"    // damaged layers that were moved away
	DiskOther   = "other"   // the database, logs, sockets
)

// DiskPart is what a home takes for one purpose.
type DiskPart struct {
	Kind        string `json:"kind"`                  // one of the constants above
	Count       int    `json:"count"`                 // how many there are: layers, live roots, entries of directories
	Bytes       int64  `json:"bytes"`                 // that they take
	Reclaimable int64  `json:"reclaimable,omitempty"` // how much of it a garbage collection frees, at least
}

// DiskSandbox is what one sandbox takes.
type DiskSandbox struct {
	ID     string `json:"id"`     // ID of the sandbox
	Name   string `json:"name"`   // name of the sandbox
	Own    int64  `json:"own"`    // content of finalized layers that no other sandbox's history has, as recorded
	Shared int64  `json:"shared"` // content of finalized layers that others have as well, as recorded
	Live   int64  `json:"live"`   // blocks of its live roots
}

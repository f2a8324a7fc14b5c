package wire

// DiskUse is the disk use of a home: the blocks of its files (st_blocks of 512 bytes). A file with several hard links,
// as in merged layers, counts once. Blocks that files share, as reflinks do, count in each file.
type DiskUse struct {
	Bytes       int64         `json:"bytes"`             // sum of the parts
	Reclaimable int64         `json:"reclaimable"`       // bytes that a garbage collection frees, at least
	Parts       []DiskPart    `json:"parts"`             // by kind, always in the same order
	Sandboxes   []DiskSandbox `json:"sandboxes"`         // by name
	Partial     bool          `json:"partial,omitempty"` // some files could not be read or exceeded a bound
}

// The kinds of a DiskPart, in their order.
const (
	DiskBases   = "bases"   // layers of bases: copies of the host, images, trees of commits
	DiskLayers  = "layers"  // layers of the histories of sandboxes
	DiskLive    = "live"    // changes in live roots since they were mounted, and ignored paths
	DiskMemory  = "memory"  // memory images
	DiskCaches  = "caches"  // indexes, masks
	DiskAudit   = "audit"   // the audit log, and journals that are not in it yet
	DiskRemoved = "removed" // removed and not freed yet: unused layers, directories of removed sandboxes
	DiskLost    = "lost"    // damaged layers that were moved away
	DiskOther   = "other"   // the database, logs, sockets
)

// DiskPart is the disk use of one kind of data.
type DiskPart struct {
	Kind        string `json:"kind"`                  // one of the constants above
	Count       int    `json:"count"`                 // number of layers, live roots or directory entries
	Bytes       int64  `json:"bytes"`                 // disk use
	Reclaimable int64  `json:"reclaimable,omitempty"` // bytes that a garbage collection frees, at least
}

// DiskSandbox is the disk use of one sandbox.
type DiskSandbox struct {
	ID     string `json:"id"`     // ID of the sandbox
	Name   string `json:"name"`   // name of the sandbox
	Own    int64  `json:"own"`    // content of finalized layers that no other sandbox's history has, as recorded
	Shared int64  `json:"shared"` // content of finalized layers that others have as well, as recorded
	Live   int64  `json:"live"`   // blocks of its live roots
}

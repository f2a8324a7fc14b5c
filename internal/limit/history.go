package limit

// SealedHoles is how many bytes of holes in the files of a layer are hashed as the zeros
// that they read as, and written to tar. Files beyond are hashed by their data alone.
const SealedHoles = 256 << 20

// The bounds on snapshots, layers and what is asked about them.
const (
	// Depth is how many directories may lie one in another, in a live root and in a
	// snapshot of it. Walks recurse, and a goroutine's stack ends the process at 1 GB.
	Depth = 50_000
	// DiffEntries and DiffBytes bound the changes, and the bytes of their paths, that
	// one answer lists.
	DiffEntries = 100_000
	DiffBytes   = 16 << 20
	// NamedPaths and NamedBytes bound the changed paths that a capture names.
	NamedPaths = 1000
	NamedBytes = 256 << 10
	// PatchBytes bounds the bytes of the paths in a patch, and in the list of what a
	// sandbox changed in a repository.
	PatchBytes = 128 << 20
	// MessagePath is how much of a path an error message repeats, in bytes.
	MessagePath = 1 << 10
	// DiffLines is the size up to which a file is compared by lines.
	DiffLines = 8 << 20
)

const deepTest = "internal/layer/deep_test.go "

// history are the bounds on snapshots, layers and what is asked about them.
func history() area {
	return area{title: "History", bounds: []Bound{
		{
			Name: "holes of the files of a layer that are hashed as zeros", Value: SealedHoles, Unit: "bytes",
			Reached: "the digest of further files is that of their data (manifest version 2); such a layer cannot be pushed or packed: `too_large`",
			Test:    "internal/layer/sparse_test.go TestSeal_SparseFilesCostWhatTheirDataCosts",
		},
		{"directories nested in one another", Depth, "levels", "`too_large`: a snapshot or a walk names the place; nothing recorded before is lost",
			deepTest + "TestCapture_RefusesATreeThatIsTooDeep"},
		{"changes in one answer", DiffEntries, "entries", "the answer says `truncated`; where all are needed, `too_large`",
			deepTest + "TestDiff_TellsTheFirstChangesAndThatThereAreMore"},
		{"paths of the changes in one answer", DiffBytes, "bytes", "the answer says `truncated`; where all are needed, `too_large`",
			deepTest + "TestDeepTree_CostsWhatItsSizeIs"},
		{"bytes of the paths that a snapshot's message names", NamedBytes, "bytes", "further ones are counted",
			deepTest + "TestDeepTree_CostsWhatItsSizeIs"},
		{"a path in an error message", MessagePath, "bytes", "the message has its end",
			deepTest + "TestMessages_RepeatTheEndOfALongPath"},
	}}
}

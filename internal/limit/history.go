package limit

// SealedHoles is how many bytes of holes in the files of a layer are hashed as the zeros
// that they read as, and written to tar. Files beyond are hashed by their data alone.
const SealedHoles = 256 << 20

// history are the bounds on snapshots, layers and what is asked about them.
func history() area {
	return area{title: "History", bounds: []Bound{
		{
			Name: "holes of the files of a layer that are hashed as zeros", Value: SealedHoles, Unit: "bytes",
			Reached: "the digest of further files is that of their data (manifest version 2); such a layer cannot be pushed or packed: `too_large`",
			Test:    "internal/layer/sparse_test.go TestSeal_SparseFilesCostWhatTheirDataCosts",
		},
	}}
}

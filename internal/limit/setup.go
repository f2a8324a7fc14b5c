package limit

// TrustStoreBytes is the largest file of authorities that init adds the gate's to;
// Mozilla's have 220 KiB.
const TrustStoreBytes = 8 << 20

// setup are the bounds on what init and the keeper read of a sandbox, and on the time they take.
func setup() area {
	return area{title: "Starting and stopping", bounds: []Bound{
		{
			Name: "a store of authorities in the sandbox", Value: TrustStoreBytes, Unit: "bytes",
			Reached: "a start leaves the store as it is; a resume from memory fails (`too_large`)",
			Test:    "internal/box/guest/held_test.go TestHeld_RefusesABundleBeyondTheLimit",
		},
	}}
}

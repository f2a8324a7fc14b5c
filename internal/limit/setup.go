package limit

// TrustStoreBytes is the largest file of authorities that init adds the gate's to;
// Mozilla's have 220 KiB.
const TrustStoreBytes = 8 << 20

// StartSeconds is how long a sandbox may take until its init is ready.
const StartSeconds = 60

// RekeySeconds is how long init may take to re-key a sandbox that goes on from memory.
const RekeySeconds = 60

// UnansweredStopSeconds is how long a stop waits, besides the grace of the processes, for
// an init that does not answer.
const UnansweredStopSeconds = 3

// setup are the bounds on what init and the keeper read of a sandbox, and on the time they take.
func setup() area {
	return area{title: "Starting and stopping", bounds: []Bound{
		{
			Name: "a store of authorities in the sandbox", Value: TrustStoreBytes, Unit: "bytes",
			Reached: "a start leaves the store as it is; a resume from memory fails (`too_large`)",
			Test:    "internal/box/guest/held_test.go TestHeld_RefusesABundleBeyondTheLimit",
		},
		{
			Name: "a start, until init is ready", Value: StartSeconds, Unit: "seconds",
			Reached: "the keeper kills init, and the start fails (`timeout`)",
			Test:    "internal/box/keeper_late_test.go TestStart_KillsAnInitThatIsNotReady",
		},
		{
			Name: "re-keying a fork with memory", Value: RekeySeconds, Unit: "seconds",
			Reached: "the keeper kills the sandbox's processes, and the fork stays quarantined",
			Test:    "internal/box/keeper_late_test.go TestReseal_KillsABoxWhoseInitDoesNotAnswer",
		},
		{
			Name: "an init that does not answer a stop, after the grace of processes", Value: UnansweredStopSeconds, Unit: "seconds",
			Reached: "the keeper kills init, and the stop succeeds",
			Test:    "internal/box/keeper_late_test.go TestStop_KillsAnInitThatDoesNotAnswer",
		},
	}}
}

package limit

// TrustStoreBytes is the maximum size of a bundle of CA certificates to which the gate's is added, and of all Java
// trust stores together. Mozilla's bundle has 220 KiB.
const TrustStoreBytes = 8 << 20

// JavaStores is the maximum number of Java trust stores that a start processes, and JavaNames that of the names that it
// opens to find them.
const (
	JavaStores = 16
	JavaNames  = 512
)

// StartSeconds is the timeout for a sandbox's init to become ready.
const StartSeconds = 60

// RuntimeSeconds is the timeout for an OCI runtime that starts the container of a sandbox, less than StartSeconds.
const RuntimeSeconds = 50

// RekeySeconds is the timeout for init to re-key a sandbox that is resumed from memory.
const RekeySeconds = 60

// RecoverSeconds is how long a starting daemon waits for the keepers of an earlier daemon.
const RecoverSeconds = 5

// StateSeconds is how long a listing of sandboxes waits for a keeper.
const StateSeconds = 5

// UnansweredStopSeconds is how long a stop waits, beyond the grace period of the processes, for an init that does not
// answer.
const UnansweredStopSeconds = 3

// InitAnswerSeconds is the timeout of other requests of the keeper to init, and SaveSeconds that of saving a memory
// image.
const (
	InitAnswerSeconds = 60
	SaveSeconds       = 30 * 60
)

// CaptureStopSeconds is how long a stop waits for a capture that holds the sandbox before it cancels the capture.
const CaptureStopSeconds = 10

// EnforcedDetail and EnforcedText bound the list of what a sandbox enforces: the detail of one item, and the text of
// all items. As JSON, both fit many times into a frame and into a record of the ledger.
const (
	EnforcedDetail = 4 << 10
	EnforcedText   = 32 << 10
)

// StatusArgs is the maximum size of a command's arguments in a status, in bytes; the same as in a record of the ledger.
const StatusArgs = 64 << 10

// KeeperText is the maximum size of a message of the keeper: why a call failed, or why a command did not start.
const KeeperText = 16 << 10

// ProgramsAlive is the maximum number of live processes of a sandbox that init tracks to find the parent of each
// program, with a descriptor for each. InitFiles is the maximum number of descriptors that it needs in total.
const (
	ProgramsAlive = 8 << 10
	InitFiles     = ProgramsAlive + 1<<10
)

// setup returns the bounds on what init and the keeper read of a sandbox, and on the time they take.
func setup() area {
	return area{title: "Starting and stopping", bounds: []Bound{
		{
			Name: "a bundle of CA certificates in the sandbox", Value: TrustStoreBytes, Unit: "bytes",
			Reached: "a start leaves the bundle unchanged; a resume from memory fails (`too_large`)",
			Test:    "internal/box/guest/held_test.go TestHeld_RefusesLargeBundle",
		},
		{
			Name: "Java's stores of CA certificates in the sandbox, together", Value: TrustStoreBytes, Unit: "bytes",
			Reached: "a start leaves a store that does not fit unchanged, and `coppice status` names it as the item `java`",
			Test:    "internal/box/keeper/java_test.go TestJavaStores_AreBounded",
		},
		{
			Name: "stores of Java's that are looked at", Value: JavaStores, Unit: "names",
			Reached: "a start leaves the others unchanged, and `coppice status` says so in the item `java`",
			Test:    "internal/box/keeper/java_test.go TestJavaStores_AreBounded",
		},
		{
			Name: "names that are opened to find Java's stores", Value: JavaNames, Unit: "names",
			Reached: "the search ends, and `coppice status` says so in the item `java`",
			Test:    "internal/box/keeper/java_test.go TestJavaStores_OpenFewNames",
		},
		{
			Name: "a start, until init is ready", Value: StartSeconds, Unit: "seconds",
			Reached: "the keeper kills init, and the start fails (`timeout`)",
			Test:    "internal/box/keeper/late_test.go TestStart_KillsInitThatIsNotReady" + lowered,
		},
		{
			Name: "a start of a container by an OCI runtime", Value: RuntimeSeconds, Unit: "seconds",
			Reached: "the runtime is killed, and the start fails (`timeout`)",
			Test:    "internal/box/oci/oci_test.go TestStart_BrokenRuntimes" + lowered,
		},
		{
			Name: "re-keying a fork with memory", Value: RekeySeconds, Unit: "seconds",
			Reached: "the keeper kills the sandbox's processes, and the fork stays quarantined",
			Test:    "internal/box/keeper/late_test.go TestRekey_KillsBoxOfUnresponsiveInit" + lowered,
		},
		{
			Name: "waiting for the keepers of an earlier daemon, when the daemon starts", Value: RecoverSeconds, Unit: "seconds",
			Reached: "the sandbox cannot be used until its keeper answers (`unavailable`): each use asks it again",
			Test:    "internal/engine/recovery_test.go TestRecovery_DoesNotWaitForHungMonitor",
		},
		{
			Name: "waiting for a keeper, in a list of sandboxes", Value: StateSeconds, Unit: "seconds",
			Reached: "the state of the sandbox is `unavailable`",
			Test:    "internal/engine/recovery_test.go TestList_DoesNotWaitForHungMonitor",
		},
		{
			Name:  "waiting for an init that does not answer a stop, after the grace period of processes",
			Value: UnansweredStopSeconds, Unit: "seconds",
			Reached: "the keeper kills init, and the stop succeeds",
			Test:    "internal/box/keeper/late_test.go TestStop_KillsUnresponsiveInit" + lowered,
		},
		{
			Name: "any other answer of init", Value: InitAnswerSeconds, Unit: "seconds",
			Reached: "the keeper kills the sandbox's processes, and the request fails (`timeout`)",
			Test:    "internal/box/keeper/answer_test.go TestAsk_KillsBoxOfUnresponsiveInit" + lowered,
		},
		{
			Name: "saving a memory image", Value: SaveSeconds, Unit: "seconds",
			Reached: "the keeper kills the sandbox's processes, and the request fails (`timeout`)",
			Test:    "internal/box/keeper/answer_test.go TestAsk_KillsBoxOfUnresponsiveInit" + lowered,
		},
		{
			Name: "a capture that a stop waits for", Value: CaptureStopSeconds, Unit: "seconds",
			Reached: "the capture is cancelled; `rm --force` cancels it at once",
			Test:    "internal/engine/held_test.go TestStop_CancelsACapture" + lowered,
		},
		{
			Name: "the detail of one item in the list of what a sandbox enforces", Value: EnforcedDetail, Unit: "bytes",
			Reached: "the detail is truncated, and ends in `...`",
			Test:    "internal/plan/bounded_test.go TestBounded_CutsDetails",
		},
		{
			Name: "the details of all these items", Value: EnforcedText, Unit: "bytes",
			Reached: "details are replaced by a note that they are left out",
			Test:    "internal/plan/bounded_test.go TestBounded_CutsDetails",
		},
		{
			Name: "the arguments of a command in a status", Value: StatusArgs, Unit: "bytes",
			Reached: "they are truncated, and the last one ends in `...`",
			Test:    "internal/box/keeper/answer_test.go TestStatus_FitsAFrame",
		},
		{
			Name: "a message of the keeper: why a call failed, or why a command did not start", Value: KeeperText, Unit: "bytes",
			Reached: "it is truncated, and ends in `...`",
			Test:    "internal/box/keeper/answer_test.go TestStart_TruncatesCommandMessage",
		},
		{
			Name: "descriptors that init may need to find the parent of each program", Value: InitFiles, Unit: "descriptors",
			Reached: "where the hard limit is lower, `coppice status` shows `descriptors weak`, and a strong policy refuses " +
				"to start",
			Test: "internal/plan/descriptors_test.go TestDecide_ReportsTooFewDescriptors",
		},
	}}
}

package limit

// StopSeconds is how long the daemon takes to stop, whatever it is doing.
const StopSeconds = 5

// The daemon's own memory.
const (
	// DaemonMemory is the least soft limit that the daemon gives itself, in bytes, where
	// the host has twice as much.
	DaemonMemory = 256 << 20
	// CostLarge is what a request counts that may list or pack a whole tree, and CostSmall
	// one that lists a part or streams a file, in bytes.
	CostLarge = 64 << 20
	CostSmall = 8 << 20
	// AdmissionSeconds is how long a request waits for memory that others hold.
	AdmissionSeconds = 10
	// AdmissionWaiting is how many requests may wait for it, and AdmissionWaitingOne how
	// many of one sandbox or token.
	AdmissionWaiting    = 256
	AdmissionWaitingOne = 32
	// AnswerSeconds is how long the holder of a token may take to receive 64 KiB of an
	// answer for which memory is held.
	AnswerSeconds = 120
)

// The kernel's counts that a sandbox shares with its owner: a user namespace charges
// whoever made it (kernel/ucount.c). Of those below a sandbox gets an eighth of what the
// host gives one user, and no more than this many.
const (
	// Inotify and InotifyWatches bound inotify(7), as each user of a sandbox.
	Inotify        = 128
	InotifyWatches = 64 << 10
	// Fanotify and FanotifyMarks bound fanotify(7), which the call filter refuses besides.
	Fanotify      = 16
	FanotifyMarks = 8 << 10
	// Namespaces is how many of each kind there may be; commands can make none.
	Namespaces = 8
)

const admissionTest = "internal/admission/admission_test.go "

const inotifyTest = "internal/box/escape/inotify_test.go TestInotify_IsLeftToTheOwner"

const countsTest = "internal/box/guest/counts_linux_test.go TestCounts_AreReachedInANamespace"

// OfHost is a sandbox's part of what the host gives one user: an eighth, at most most.
func OfHost(host, most int64) int64 { return max(1, min(host/8, most)) }

// host are the bounds on what a sandbox takes of the host and the daemon.
func host() area {
	return area{title: "The host and the daemon", bounds: []Bound{
		{
			Name: "time that a stop of the daemon takes", Value: StopSeconds, Unit: "seconds",
			Reached: "requests are cut off after 3 seconds; then the process ends with what still runs, and the next start recovers",
			Test:    "internal/daemon/serve_linux_test.go TestStop_EndsThoughBackgroundWorkHangs",
		},
		{"the daemon's soft memory limit: a quarter of what its control group or the host gives, but where that is twice as much at least", DaemonMemory, "bytes",
			"large requests wait and are refused: `unavailable`, 503; `coppice serve --memory SIZE` or `GOMEMLIMIT` sets another", admissionTest + "TestSoftLimit"},
		{"what a request counts that lists or packs a tree; together they have half of the soft limit, and those of one sandbox or token half of that", CostLarge, "bytes",
			"it waits for its turn", admissionTest + "TestGate_OneSandboxLeavesRoomForOthers"},
		{"what a request counts that lists a history or records", CostSmall, "bytes", "it waits for its turn", "internal/httpapi/admission_test.go TestAdmission_CountsSmallRequests"},
		{"time that a request waits for memory", AdmissionSeconds, "seconds", "`unavailable`, 503 with Retry-After", admissionTest + "TestGate_RefusesAfterItsTime"},
		{"requests that wait for memory", AdmissionWaiting, "requests", "`unavailable`, 503 with Retry-After", admissionTest + "TestGate_BoundsWhoWaits"},
		{"requests of one sandbox or token that wait for memory", AdmissionWaitingOne, "requests", "`unavailable`, 503 with Retry-After", admissionTest + "TestGate_BoundsWhoWaits"},
		{"time in which the holder of a token receives 64 KiB of an answer that holds memory", AnswerSeconds, "seconds", "the connection is closed",
			"internal/httpapi/admission_test.go TestAdmission_EndsAnAnswerThatIsNotReceived"},
		{"inotify instances of each user of a sandbox; less where an eighth of the host's `fs.inotify.max_user_instances` is less", Inotify, "instances",
			"EMFILE inside", inotifyTest},
		{"inotify watches of each user of a sandbox; or an eighth of `fs.inotify.max_user_watches`", InotifyWatches, "watches", "ENOSPC inside", countsTest},
		{"fanotify groups of each user of a sandbox; or an eighth of `fs.fanotify.max_user_groups`", Fanotify, "groups", "EMFILE inside; the call filter refuses fanotify besides", countsTest},
		{"fanotify marks of each user of a sandbox; or an eighth of `fs.fanotify.max_user_marks`", FanotifyMarks, "marks", "ENOSPC inside; the call filter refuses fanotify besides", countsTest},
		{"namespaces of each kind in a sandbox; user namespaces: none", Namespaces, "namespaces", "ENOSPC inside; the call filter refuses to make any besides", countsTest},
	}}
}

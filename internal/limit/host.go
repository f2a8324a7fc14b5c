package limit

// StopSeconds is how long the daemon takes to stop, whatever it is doing.
const StopSeconds = 5

// The daemon's own memory.
const (
	// DaemonMemory is the least soft limit that the daemon sets for itself, in bytes, if
	// the host has twice as much.
	DaemonMemory = 256 << 20
	// CostLarge is the memory, in bytes, reserved for a request that may list or pack a whole
	// tree, and CostSmall for one that lists a part or streams a file.
	CostLarge = 64 << 20
	CostSmall = 8 << 20
	// AdmissionSeconds is how long a request waits for memory that others hold.
	AdmissionSeconds = 10
	// AdmissionWaiting is how many requests may wait for it, and AdmissionWaitingOne how
	// many of one sandbox or token.
	AdmissionWaiting    = 256
	AdmissionWaitingOne = 32
	// AnswerSeconds is how long a client with a token may take to read 64 KiB of an answer
	// for which memory is reserved.
	AnswerSeconds = 120
)

// The kernel's counts that a sandbox shares with its owner: a user namespace charges its
// owner (kernel/ucount.c). A sandbox gets an eighth of the host's limit for one user, and at
// most this many.
const (
	// Inotify and InotifyWatches bound inotify(7), as each user of a sandbox.
	Inotify        = 128
	InotifyWatches = 64 << 10
	// Fanotify and FanotifyMarks bound fanotify(7), which the seccomp filter refuses as well.
	Fanotify      = 16
	FanotifyMarks = 8 << 10
	// Namespaces is how many of each kind there may be; the seccomp filter lets commands make
	// none.
	Namespaces = 8
)

// Terminals is how many pseudo-terminals a sandbox may have open: they are counted for the
// whole machine (kernel.pty.max).
const Terminals = 256

// OpenFilesOfHost returns how many descriptors a process of a sandbox may have open, of those
// that init may: the kernel refuses to pass a descriptor over a socket while the user has
// as many in flight as the sender may have open (unix(7), ETOOMANYREFS), and no process of a
// sandbox may do that to init, its keeper and the daemon.
func OpenFilesOfHost(host uint64) uint64 { return max(1, host/2) }

// UnchangeableEntries is how many entries of the directory in which a sandbox is created are looked at for
// files that it cannot change. It is a few milliseconds.
const UnchangeableEntries = 4096

const admissionTest = "internal/admission/admission_test.go "

const inotifyTest = "internal/boxtest/escape/counts_test.go TestInotify_IsLeftToTheOwner"

const countsTest = "internal/box/guest/counts_linux_test.go TestCounts_BoundUserNamespace"

// OfHost returns a sandbox's part of the host's limit for one user: an eighth, at most most.
func OfHost(host, most int64) int64 { return max(1, min(host/8, most)) }

// host returns the bounds on what a sandbox takes of the host and the daemon.
func host() area {
	return area{title: "The host and the daemon", bounds: []Bound{
		{
			Name: "time that a stop of the daemon takes", Value: StopSeconds, Unit: "seconds",
			Reached: "requests are cancelled after 3 seconds; then the process exits whatever still runs, and the next start " +
				"recovers",
			Test: "internal/daemon/serve_linux_test.go TestCloseBy_TimesOutHungWork",
		},
		{"the least soft memory limit of the daemon, where twice as much is available; otherwise a quarter of the memory " +
			"of its control group or host", DaemonMemory, "bytes",
			"large requests wait, then fail: `unavailable`, 503; set it with `coppice serve --memory SIZE` or `GOMEMLIMIT`",
			admissionTest + "TestSoftLimit"},
		{"memory reserved for a request that lists or packs a tree; all requests share half of the soft limit, and those " +
			"of one sandbox or token half of that", CostLarge, "bytes",
			"the request waits", admissionTest + "TestGate_LimitsShareOfSandbox"},
		{"memory reserved for a request that lists a history or records", CostSmall, "bytes", "the request waits",
			"internal/httpapi/admission_test.go TestAdmission_CountsSmallRequests"},
		{"time for which a request waits for memory", AdmissionSeconds, "seconds", "`unavailable`, 503 with Retry-After",
			admissionTest + "TestGate_TimesOut"},
		{"requests that wait for memory", AdmissionWaiting, "requests", "`unavailable`, 503 with Retry-After",
			admissionTest + "TestGate_BoundsQueue"},
		{"requests of one sandbox or token that wait for memory", AdmissionWaitingOne, "requests",
			"`unavailable`, 503 with Retry-After", admissionTest + "TestGate_BoundsQueue"},
		{"time in which the holder of a token must receive 64 KiB of an answer for which memory is reserved", AnswerSeconds,
			"seconds", "the connection is closed",
			"internal/httpapi/admission_test.go TestAdmission_EndsStalledResponse"},
		{"inotify instances of each user in a sandbox, or an eighth of the host's `fs.inotify.max_user_instances` if that " +
			"is less", Inotify, "instances",
			"EMFILE inside", inotifyTest},
		{"inotify watches of each user in a sandbox, or an eighth of `fs.inotify.max_user_watches`", InotifyWatches,
			"watches", "ENOSPC inside", countsTest},
		{"fanotify groups of each user in a sandbox, or an eighth of `fs.fanotify.max_user_groups`", Fanotify, "groups",
			"EMFILE inside; the seccomp filter refuses such calls as well", countsTest},
		{"fanotify marks of each user in a sandbox, or an eighth of `fs.fanotify.max_user_marks`", FanotifyMarks, "marks",
			"ENOSPC inside; the seccomp filter refuses such calls as well", countsTest},
		{"namespaces of each kind, except user namespaces, which a sandbox cannot make", Namespaces, "namespaces",
			"ENOSPC inside; the seccomp filter refuses such calls as well", countsTest},
		{"entries that `coppice create` looks at for files that the sandbox cannot change", UnchangeableEntries, "entries",
			"the warning says \"at least\"", "internal/rootfs/unchangeable_test.go TestFindUnchangeable_IsBounded"},
		{"pseudo-terminals of a sandbox", Terminals, "terminals", "ENOSPC inside",
			"internal/boxtest/escape/counts_test.go TestCounts_AreLeftToOthers"},
	}}
}

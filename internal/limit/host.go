package limit

// StopSeconds is the maximum time for a stop of the daemon, whatever it is doing.
const StopSeconds = 5

// The daemon's own memory.
const (
	// DaemonMemory is the minimum soft limit that the daemon sets for itself, in bytes, if the host has twice as much.
	DaemonMemory = 256 << 20
	// CostLarge is the memory, in bytes, reserved for a request that may list or pack a whole tree, and CostSmall for
	// one that lists a part or streams a file.
	CostLarge = 64 << 20
	CostSmall = 8 << 20
	// AdmissionSeconds is how long a request waits for memory that other requests hold.
	AdmissionSeconds = 10
	// AdmissionWaiting is the maximum number of requests that wait for it, and AdmissionWaitingOne that of one sandbox
	// or token.
	AdmissionWaiting    = 256
	AdmissionWaitingOne = 32
	// AnswerSeconds is the time in which a client with a token must read 64 KiB of an answer for which memory is
	// reserved.
	AnswerSeconds = 120
)

// The kernel's counts that a sandbox shares with its owner, because a user namespace charges its owner
// (kernel/ucount.c). A sandbox gets an eighth of the host's limit for one user, and at most these numbers.
const (
	// Inotify and InotifyWatches bound inotify(7), for each user of a sandbox.
	Inotify        = 128
	InotifyWatches = 64 << 10
	// Fanotify and FanotifyMarks bound fanotify(7), which the seccomp filter refuses as well.
	Fanotify      = 16
	FanotifyMarks = 8 << 10
	// Namespaces is the maximum number of namespaces of each kind; the seccomp filter does not let commands create any.
	Namespaces = 8
)

// Terminals is the maximum number of open pseudo-terminals of a sandbox: the kernel counts them for the whole machine
// (kernel.pty.max).
const Terminals = 256

// OpenFilesOfHost returns the maximum number of open descriptors of a process of a sandbox, given that of init. The
// kernel refuses to pass a descriptor over a socket while the user has as many in flight as the sender may have open
// (unix(7), ETOOMANYREFS), and no process of a sandbox may cause that for init, its keeper and the daemon.
func OpenFilesOfHost(host uint64) uint64 { return max(1, host/2) }

// TasksOfHost returns the maximum number of tasks (processes and threads) of a user beyond which commands of a locked
// workspace start none, given the user's limit. The rest is for init, its keeper, the gate and the daemon, which have
// the same user.
func TasksOfHost(host uint64) uint64 { return max(1, host-min(256, host/4)) }

// UnchangeableEntries is the maximum number of entries of the directory in which a sandbox is created that are checked
// for files that the sandbox cannot change. That takes a few milliseconds.
const UnchangeableEntries = 4096

const admissionTest = "internal/admission/admission_test.go "

const inotifyTest = "internal/boxtest/escape/counts_test.go TestInotify_IsLeftToTheOwner"

const countsTest = "internal/box/guest/counts_linux_test.go TestCounts_BoundUserNamespace"

// OfHost returns a sandbox's share of the host's limit for one user: an eighth, and at most most.
func OfHost(host, most int64) int64 { return max(1, min(host/8, most)) }

// host returns the bounds on what a sandbox uses of the host and the daemon.
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

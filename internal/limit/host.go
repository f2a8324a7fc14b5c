package limit

// StopSeconds is how long the daemon takes to stop, whatever it is doing.
const StopSeconds = 5

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

const inotifyTest = "internal/box/escape/inotify_test.go TestInotify_IsLeftToTheOwner"

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
		{"inotify instances of a user of a sandbox: an eighth of the host's `fs.inotify.max_user_instances`, and", Inotify, "instances",
			"EMFILE inside", inotifyTest},
		{"inotify watches, an eighth of `fs.inotify.max_user_watches`, and", InotifyWatches, "watches", "ENOSPC inside", inotifyTest},
	}}
}

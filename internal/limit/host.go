package limit

// StopSeconds is how long the daemon takes to stop, whatever it is doing.
const StopSeconds = 5

// host are the bounds on what a sandbox takes of the host and the daemon.
func host() area {
	return area{title: "The host and the daemon", bounds: []Bound{
		{
			Name: "time that a stop of the daemon takes", Value: StopSeconds, Unit: "seconds",
			Reached: "requests are cut off after 3 seconds; then the process ends with what still runs, and the next start recovers",
			Test:    "internal/daemon/serve_linux_test.go TestStop_EndsThoughBackgroundWorkHangs",
		},
	}}
}

package limit

// host are the bounds on what a sandbox takes of the host and the daemon.
func host() area {
	return area{title: "The host and the daemon", bounds: []Bound{}}
}

package limit

// setup are the bounds on what init and the keeper read of a sandbox, and on the time they take.
func setup() area {
	return area{title: "Starting and stopping", bounds: []Bound{}}
}

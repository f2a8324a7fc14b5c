package limit

// line are the bounds on the socket inside a sandbox.
func line() area {
	return area{title: "The socket inside a sandbox", bounds: []Bound{}}
}

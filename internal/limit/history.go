package limit

// history are the bounds on snapshots, layers and what is asked about them.
func history() area {
	return area{title: "History", bounds: []Bound{}}
}

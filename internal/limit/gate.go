package limit

// gate are the bounds on what the gate reads and relays.
func gate() area {
	return area{title: "Network", bounds: []Bound{}}
}

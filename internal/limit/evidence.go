package limit

// evidence are the bounds on what is recorded.
func evidence() area {
	return area{title: "Evidence", bounds: []Bound{}}
}

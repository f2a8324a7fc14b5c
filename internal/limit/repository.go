package limit

// repositories are the bounds on work trees, their rules and objects.
func repositories() area {
	return area{title: "Repositories", bounds: []Bound{}}
}

package limit

// archives are the bounds on archives and images that come from outside.
func archives() area {
	return area{title: "Archives and images", bounds: []Bound{}}
}

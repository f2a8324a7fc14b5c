package format

// Captures returns the names of the captures that a record names.
func (r *Record) Captures() (names []string) {
	switch b := r.Body.(type) {
	case *Exit:
		for _, o := range b.Output {
			if o.Blob != "" {
				names = append(names, o.Blob)
			}
		}
	case *Program:
		if b.List != "" {
			names = append(names, b.List)
		}
	}
	return names
}

package policy

// Hidden returns the paths that p hides, built-in ones and others, with ~ expanded to each of homes. A relative path
// stays relative.
func (p Policy) Hidden(homes ...string) (builtIn, said []string) {
	for _, s := range p.Hide {
		list := &said
		if s.At.BuiltIn() {
			list = &builtIn
		}
		*list = append(*list, s.Value.Within(homes...)...)
	}
	return builtIn, said
}

// DecoyPaths returns the paths at which p has decoys, in the form of Hidden.
func (p Policy) DecoyPaths(homes ...string) (builtIn, said []string) {
	for _, s := range p.Decoys {
		list := &said
		if s.At.BuiltIn() {
			list = &builtIn
		}
		*list = append(*list, s.Value.Within(homes...)...)
	}
	return builtIn, said
}

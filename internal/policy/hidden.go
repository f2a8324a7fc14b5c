package policy

// Hidden gives the paths that p hides, built in ones and others, with each of homes in
// the place of ~. A path of p that is relative stays so.
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

// DecoyPaths gives the paths at which p has decoys, as Hidden gives what it hides.
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

package layer

// The names of a file refer to one file in a snapshot if one layer has them. A walk may choose some names of
// a file and not others: in a directory that was renamed everything is new, while a name elsewhere has not
// changed. Such a file must be chosen with all its names.

// torn returns the inodes of files of which d has some names and n, the present state of the directory, has more. Both
// belong to one part. nil: none.
func (d *delta) torn(n *dirNode) map[uint64]struct{} {
	missing := map[uint64]int{} // names in n that d does not have
	d.eachLinked(func(ino uint64) { missing[ino]-- })
	if len(missing) == 0 {
		return nil
	}
	n.eachLinked(func(ino uint64) {
		if _, ok := missing[ino]; ok {
			missing[ino]++
		}
	})
	var torn map[uint64]struct{}
	for ino, m := range missing {
		if m == 0 {
			continue
		}
		if torn == nil {
			torn = map[uint64]struct{}{}
		}
		torn[ino] = struct{}{}
	}
	return torn
}

// eachLinked calls fn for each chosen name of a file that has several.
func (d *delta) eachLinked(fn func(ino uint64)) {
	if d == nil {
		return
	}
	for i := range d.items {
		if e := d.items[i].ent; e.nlink > 1 {
			fn(e.ino)
		}
	}
	for _, k := range d.kids {
		k.eachLinked(fn)
	}
}

// eachLinked calls fn for each name of a file that has several.
func (n *dirNode) eachLinked(fn func(ino uint64)) {
	for i := range n.ents {
		if e := &n.ents[i]; e.nlink > 1 {
			fn(e.ino)
		}
	}
	for _, k := range n.kids {
		k.eachLinked(fn)
	}
}

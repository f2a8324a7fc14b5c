package memory

// own is the pack of a place in the new image itself.
const own = 0

// source is a pack whose pages an image may use.
type source struct {
	id      digest
	digests []digest
	live    pageSet // pages that can be used; others may have been punched out
}

// layout describes how an image is stored.
type layout struct {
	// identity says that the file of the pages becomes the new pack as it is, so that a restore needs no copy.
	identity bool
	packs    []digest // the packs that are used; the zero digest stands for the new one
	runs     []run
	fresh    []uint32 // unless identity: the image's pages that make up the new pack, ascending
}

// mostKnown limits which images become their own pack: those of which at most one page in mostKnown is known.
const mostKnown = 16

// plan decides how an image with these pages is stored beside the sources. Earlier sources are preferred.
func plan(pages []digest, sources []source) layout {
	n := len(pages)
	for _, s := range sources {
		n += s.live.count()
	}
	t := newTable(n)
	for k, s := range sources {
		for i, d := range s.digests {
			if d != (digest{}) && s.live.has(uint32(i)) {
				t.put(d, place{uint32(k + 1), uint32(i)})
			}
		}
	}
	at := make([]place, len(pages))
	var fresh []uint32
	known := 0
	for i, d := range pages {
		if d == (digest{}) {
			continue
		}
		there, was := t.put(d, place{own, uint32(len(fresh))})
		if at[i] = there; was {
			known++
		} else {
			fresh = append(fresh, uint32(i))
		}
	}
	l := layout{fresh: fresh}
	if len(fresh) > 0 && known <= (known+len(fresh))/mostKnown {
		l.identity, l.fresh = true, nil
		for i := range at {
			at[i] = place{own, uint32(i)}
		}
	}
	l.lay(pages, at, sources)
	return l
}

// lay makes runs from places, and numbers the packs in the order of their first use.
func (l *layout) lay(pages []digest, at []place, sources []source) {
	number := make([]uint32, len(sources)+1)
	var m manifest
	for i, d := range pages {
		if d == (digest{}) {
			m.add(run{count: 1})
			continue
		}
		k := at[i].pack
		if number[k] == 0 {
			var id digest
			if k != own {
				id = sources[k-1].id
			}
			l.packs = append(l.packs, id)
			number[k] = uint32(len(l.packs))
		}
		m.add(run{pack: number[k], first: at[i].page, count: 1})
	}
	l.runs = m.runs
}

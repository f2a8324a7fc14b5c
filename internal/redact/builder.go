package redact

import "math/bits"

// builder makes an automaton. Its nodes form a trie: the first is the root.
type builder struct {
	nodes []node
	words int32
}

// node is a prefix of a word. The root is never a child or sibling, so 0 means none.
type node struct {
	child, sibling int32
	word           int32 // number of the word, or -1
	b              byte  // last byte of the prefix
}

// add returns the number of a folded word: numbers start at 0.
func (b *builder) add(word string) int32 {
	if b.nodes == nil {
		b.nodes = []node{{word: -1}}
	}
	at := int32(0)
	for i := range len(word) {
		at = b.step(at, word[i])
	}
	if n := &b.nodes[at]; n.word < 0 {
		n.word = b.words
		b.words++
	}
	return b.nodes[at].word
}

// step returns the child for c, and creates it if necessary.
func (b *builder) step(at int32, c byte) int32 {
	for to := b.nodes[at].child; to != 0; to = b.nodes[to].sibling {
		if b.nodes[to].b == c {
			return to
		}
	}
	to := int32(len(b.nodes))
	b.nodes = append(b.nodes, node{sibling: b.nodes[at].child, word: -1, b: c})
	b.nodes[at].child = to
	return to
}

// build numbers the nodes by their depth, so that a state's fall, which is nearer to the root, is complete before it.
func (b *builder) build() *automaton {
	a := &automaton{}
	classes := b.classes(a)
	a.shift = uint(bits.Len(uint(classes - 1)))
	order := []int32{0}
	a.child, a.word, a.depth = []int32{0}, make([]int32, len(b.nodes)), make([]int32, len(b.nodes))
	for at := 0; at < len(order); at++ {
		n := b.nodes[order[at]]
		a.word[at] = n.word
		for to := n.child; to != 0; to = b.nodes[to].sibling {
			a.depth[len(order)] = a.depth[at] + 1
			a.edges = append(a.edges, edge{a.class[b.nodes[to].b], int32(len(order))})
			order = append(order, to)
		}
		a.child = append(a.child, int32(len(a.edges)))
	}
	a.connect()
	return a
}

// classes numbers the bytes that words have, and counts the classes.
func (b *builder) classes(a *automaton) int {
	n := 1
	for _, node := range b.nodes[1:] {
		if a.class[node.b] == 0 {
			a.class[node.b] = uint8(n) // at most 230, since no node has a capital letter
			n++
		}
	}
	for c := 'A'; c <= 'Z'; c++ {
		a.class[c] = a.class[lower(byte(c))]
	}
	return n
}

// connect sets the fall of each state, and fills the rows.
func (a *automaton) connect() {
	states := int32(len(a.word))
	a.fall, a.shorter = make([]int32, states), make([]int32, states)
	last := min(states, maxRows)
	a.rows = make([]int32, int(last)<<a.shift)
	for s := range states {
		for i := a.child[s]; i < a.child[s+1]; i++ {
			e := &a.edges[i]
			to := e.to
			if s != 0 {
				a.fall[to], _ = a.step(a.fall[s], e.class)
			}
			if f := a.fall[to]; a.word[f] >= 0 {
				a.shorter[to] = f
			} else {
				a.shorter[to] = a.shorter[f]
			}
			if a.word[to] >= 0 || a.shorter[to] != 0 {
				e.to |= hit
			}
		}
		if s < last {
			a.fill(s)
			a.dense = s + 1
		}
	}
}

// fill makes the row of a state: that of its fall, except for its own children.
func (a *automaton) fill(s int32) {
	row := a.rows[int(s)<<a.shift : int(s+1)<<a.shift]
	if s != 0 {
		copy(row, a.rows[int(a.fall[s])<<a.shift:])
	}
	for _, e := range a.edges[a.child[s]:a.child[s+1]] {
		row[e.class] = e.to
	}
}

package redact

// automaton finds all occurrences of words in a text in one pass (Aho-Corasick), ignoring case. A state stands for
// the longest prefix of a word with which the text that was read so far ends.
//
// States near the root, where text spends its time, have a row with all transitions. The other states, nearly all of
// which have one child, only have their children, and fall back.
type automaton struct {
	class   [256]uint8 // of a byte: 0 for bytes that no word has; letters are folded
	shift   uint       // a row has 1<<shift transitions
	rows    []int32    // of the states below dense, with the sign of hit
	dense   int32
	child   []int32 // of each state: index of its first child in edges; one more at the end
	edges   []edge
	fall    []int32 // state of the next shorter suffix
	depth   []int32 // length of the prefix
	word    []int32 // number of the word that ends here, or -1
	shorter []int32 // next state along fall at which a word ends, or 0
}

type edge struct {
	class uint8
	to    int32 // with the sign of hit
}

// hit marks a transition to a state where words end.
const hit = int32(-1) << 31

// maxRows bounds the memory of rows: a megabyte where words have 256 kinds of bytes.
const maxRows = 1024

// step returns the state after a byte of class c, and whether words end there.
func (a *automaton) step(state int32, c uint8) (int32, bool) {
	for state >= a.dense {
		for _, e := range a.edges[a.child[state]:a.child[state+1]] {
			if e.class == c {
				return e.to &^ hit, e.to < 0
			}
		}
		state = a.fall[state]
	}
	to := a.rows[int(state)<<a.shift|int(c)]
	return to &^ hit, to < 0
}

// each calls with for the words that end in state, longest first.
func (a *automaton) each(state int32, with func(word int32)) {
	if a.word[state] < 0 {
		state = a.shorter[state]
	}
	for ; state != 0; state = a.shorter[state] {
		with(a.word[state])
	}
}

// fold converts ASCII letters to lower case.
func fold(text string) string {
	b := []byte(text)
	for i, c := range b {
		b[i] = lower(c)
	}
	return string(b)
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

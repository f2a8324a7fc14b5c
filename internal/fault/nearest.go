package fault

import "strings"

// Nearest returns the option that a user who typed word most likely meant, for a hint: one from which word differs by
// at most a third of the option's letters, rounded up, or that begins with word, if word has two letters or more. Case
// does not count, and two swapped letters are one difference. It returns "" if no option is near. Of several equally
// near options it returns the one that sorts first.
//
// The work is bounded by the length of the options alone: word may be untrusted, and of any length.
func Nearest(word string, options []string) string {
	word = strings.ToLower(word)
	best, least := "", 0
	for _, o := range options {
		small := strings.ToLower(o)
		most := (len(small) + 2) / 3
		if best != "" {
			most = min(most, least)
		}
		d := distance(word, small, most)
		if len(word) >= 2 && strings.HasPrefix(small, word) {
			d = min(d, 1)
		}
		if d <= most && (best == "" || d < least || o < best) {
			best, least = o, d
		}
	}
	return best
}

// distance returns the number of bytes to insert, remove, change or swap with their neighbour to turn a into b. It
// returns most+1 for more than most, without work if the lengths differ by more.
func distance(a, b string, most int) int {
	if max(len(a), len(b))-min(len(a), len(b)) > most {
		return most + 1
	}
	before, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, above, row = above, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := above[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(above[j]+1, row[j-1]+1, change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return min(row[len(b)], most+1)
}

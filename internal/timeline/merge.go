package timeline

// MergePlan is a plan to merge layers, topmost first, into one. This becomes the Layer of a merged Route from Top to
// Below.
type MergePlan struct {
	Top    SnapshotID
	Below  SnapshotID
	Layers []LayerID
}

const (
	// MergeArity is how many neighbors of one size are merged at a time; a shorter stack is never merged. A chain of n
	// snapshots then has at most 7 layers of each of the sizes 1, 8, 64, 512, 4096: 28 layers for n < 4,096.
	MergeArity = 8
	// maxStack is the length from which neighbors are merged even if their sizes differ.
	maxStack = 30
)

// PlanMerges returns the merges that shorten target's stack below 30 layers, however long its chain is, given the
// existing routes, merged ones among them. The plans need only layers that exist, so they can be carried out in any
// order, concurrently, and in part; smaller merges come first. Merges that help a shorter ancestor of target are
// planned even if a larger one makes them superfluous for target. Once all are built, the plan is empty.
func PlanMerges(routes Routes, target SnapshotID, parentOf func(SnapshotID) (SnapshotID, bool)) ([]MergePlan, error) {
	path, err := shortestPath(routes, target, parentOf)
	if err != nil {
		return nil, err
	}
	sizes := spans(routes, path, parentOf)
	stack := make([]piece, len(path))
	for i, r := range path {
		stack[i] = piece{MergePlan{Top: r.Top, Below: r.Below, Layers: []LayerID{r.Layer}}, sizes[i]}
	}
	var plans []MergePlan
	for {
		next, made := mergeEqual(stack)
		if len(made) == 0 && len(stack) >= maxStack {
			next, made = mergeSmallest(stack)
		}
		if len(made) == 0 {
			return plans, nil
		}
		plans = append(plans, made...)
		stack = next
	}
}

// piece is an element of a stack that is being planned.
type piece struct {
	MergePlan
	span int // how many unmerged layers it stands for
}

// class returns the base-8 logarithm of the span, rounded down.
func (p piece) class() int {
	c := 0
	for span := p.span; span >= MergeArity; span /= MergeArity {
		c++
	}
	return c
}

// mergeEqual merges, from the bottom up, every MergeArity neighbors of one class, and returns the resulting stack.
func mergeEqual(stack []piece) (next []piece, made []MergePlan) {
	var up []piece // bottom first
	for end := len(stack); end > 0; {
		run := 1
		for run < MergeArity && run < end && stack[end-1-run].class() == stack[end-1].class() {
			run++
		}
		if run == MergeArity {
			p := join(stack[end-run : end])
			up, made = append(up, p), append(made, p.MergePlan)
			end -= run
			continue
		}
		for range run {
			end--
			up = append(up, stack[end])
		}
	}
	for i := len(up) - 1; i >= 0; i-- {
		next = append(next, up[i])
	}
	return next, made
}

// mergeSmallest merges the MergeArity adjacent pieces with the smallest total span.
func mergeSmallest(stack []piece) (next []piece, made []MergePlan) {
	best, least := 0, -1
	for i := 0; i+MergeArity <= len(stack); i++ {
		sum := 0
		for _, p := range stack[i : i+MergeArity] {
			sum += p.span
		}
		if least < 0 || sum < least {
			best, least = i, sum
		}
	}
	p := join(stack[best : best+MergeArity])
	next = append(next, stack[:best]...)
	next = append(next, p)
	return append(next, stack[best+MergeArity:]...), []MergePlan{p.MergePlan}
}

func join(ps []piece) piece {
	p := piece{MergePlan: MergePlan{Top: ps[0].Top, Below: ps[len(ps)-1].Below}}
	for _, q := range ps {
		p.Layers = append(p.Layers, q.Layers...)
		p.span += q.span
	}
	return p
}

// spans returns how many unmerged layers each route of path stands for.
func spans(routes Routes, path []Route, parentOf func(SnapshotID) (SnapshotID, bool)) []int {
	out := make([]int, len(path))
	for i, r := range path {
		out[i] = 1
		if r.Merged {
			out[i] = max(1, steps(routes, r.Top, r.Below, parentOf))
		}
	}
	return out
}

// steps counts the unmerged routes from top down to below. Where one is missing, it counts a merged route as
// MergeArity.
func steps(routes Routes, top, below SnapshotID, parentOf func(SnapshotID) (SnapshotID, bool)) int {
	n := 0
	seen := map[SnapshotID]bool{}
	for id := top; id != below && id != "" && !seen[id]; {
		seen[id] = true
		var own, merged *Route
		for i := range routes[id] {
			if r := &routes[id][i]; r.Merged {
				merged = r
			} else {
				own = r
			}
		}
		switch {
		case own != nil:
			n++
			id = own.Below
		case merged != nil:
			n += MergeArity
			id = merged.Below
		default:
			id, _ = parentOf(id)
		}
	}
	return n
}

package timeline

// MergePlan says that the layers, topmost first, should be merged into one, which
// becomes the Layer of a merged Route from Top to Below.
type MergePlan struct {
	Top    SnapshotID
	Below  SnapshotID
	Layers []LayerID
}

const (
	// mergeArity is how many neighbours of one size are merged at a time. A
	// chain of n snapshots then has at most 7 layers of each of the sizes 1, 8,
	// 64, 512, 4096: 28 layers for n < 4,096 and 35 for n < 32,768.
	mergeArity = 8
	// maxStack is the length from which on neighbours are merged although their
	// sizes differ.
	maxStack = 30
)

// PlanMerges says which merges shorten target's stack, given the routes that are
// there already, merged ones among them. The plans of one call are independent
// of each other. Built, and added to routes, they may make larger merges
// possible: call again until the plan is empty. Then StackOf is shorter than 30
// for any chain of a few thousand snapshots.
func PlanMerges(routes Routes, target SnapshotID, parentOf func(SnapshotID) (SnapshotID, bool)) ([]MergePlan, error) {
	path, err := shortestPath(routes, target, parentOf)
	if err != nil {
		return nil, err
	}
	sizes := spans(routes, path, parentOf)
	var plans []MergePlan
	for end := len(path); end >= mergeArity; {
		if run := sameSize(sizes[:end]); run == mergeArity {
			plans = append(plans, planOf(path[end-run:end]))
			end -= run
		} else {
			end -= max(1, run)
		}
	}
	if len(plans) == 0 && len(path) >= maxStack {
		plans = append(plans, planOf(smallestWindow(path, sizes)))
	}
	return plans, nil
}

// sameSize counts the elements at the end of sizes (the bottom of the stack)
// that are of the same class as the last one, at most mergeArity.
func sameSize(sizes []int) int {
	n := 0
	for n < mergeArity && n < len(sizes) && class(sizes[len(sizes)-1-n]) == class(sizes[len(sizes)-1]) {
		n++
	}
	return n
}

// class is the base-8 logarithm of a span, rounded down.
func class(span int) int {
	c := 0
	for ; span >= mergeArity; span /= mergeArity {
		c++
	}
	return c
}

// smallestWindow finds the mergeArity neighbours that span least.
func smallestWindow(path []Route, sizes []int) []Route {
	best, least := 0, -1
	for i := 0; i+mergeArity <= len(path); i++ {
		sum := 0
		for _, s := range sizes[i : i+mergeArity] {
			sum += s
		}
		if least < 0 || sum < least {
			best, least = i, sum
		}
	}
	return path[best : best+mergeArity]
}

func planOf(path []Route) MergePlan {
	p := MergePlan{Top: path[0].Top, Below: path[len(path)-1].Below}
	for _, r := range path {
		p.Layers = append(p.Layers, r.Layer)
	}
	return p
}

// spans tells how many unmerged layers each route of path stands for.
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

// steps counts the unmerged routes from top down to below. Where one is missing
// it counts the longest merged one as mergeArity.
func steps(routes Routes, top, below SnapshotID, parentOf func(SnapshotID) (SnapshotID, bool)) int {
	n := 0
	seen := map[SnapshotID]bool{}
	for id := top; id != below && id != "" && !seen[id]; {
		seen[id] = true
		var own, any *Route
		for i, r := range routes[id] {
			any = &routes[id][i]
			if !r.Merged {
				own = any
			}
		}
		switch {
		case own != nil:
			n++
			id = own.Below
		case any != nil:
			n += mergeArity
			id = any.Below
		default:
			id, _ = parentOf(id)
		}
	}
	return n
}

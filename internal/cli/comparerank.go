package cli

import (
	"cmp"
	"slices"
)

// rank sorts attempts, best first, and numbers them from 1; attempts that are equally good have the same number, and
// remain in their order. An attempt is better whose test passes, whose last command succeeded, whose risk is lower,
// whose change is smaller, in this order.
func rank(all []attempt) {
	slices.SortStableFunc(all, better)
	for i := range all {
		all[i].Rank = i + 1
		if i > 0 && better(all[i-1], all[i]) == 0 {
			all[i].Rank = all[i-1].Rank
		}
	}
}

// better compares two attempts; the result is negative if a is better.
func better(a, b attempt) int {
	return cmp.Or(
		cmp.Compare(a.tested(), b.tested()),
		cmp.Compare(a.ended(), b.ended()),
		cmp.Compare(a.Risk, b.Risk),
		cmp.Compare(a.size(), b.size()),
	)
}

// tested is 0 if the test passes, 1 without a test, and 2 if it fails.
func (a *attempt) tested() int {
	switch {
	case a.Test == nil:
		return 1
	case a.Test.Exit == 0 && !a.Test.TimedOut:
		return 0
	}
	return 2
}

// ended is 0 if the last command succeeded, 1 if none has exited, and 2 if it failed.
func (a *attempt) ended() int {
	switch {
	case a.Code == nil:
		return 1
	case *a.Code == 0:
		return 0
	}
	return 2
}

// size is the number of changed lines in the repository or, without one, of changed paths.
func (a *attempt) size() int64 {
	if a.Git != nil {
		return int64(a.Git.Added + a.Git.Deleted)
	}
	return a.Changes
}

package limit

// Bounds on a work tree that a sandbox wrote, and on its ignore rules. Those on objects and changes are the defaults of
// options of package repo.
const (
	TreePath  = 4095      // PATH_MAX without its NUL; the depth of a path is at most half of it
	TreePaths = 128 << 20 // bytes of the names of the directories that the walk is in, and of the paths that differ

	TreeEntries  = 5_000_000
	TreeChanges  = 1_000_000
	ObjectBytes  = 1 << 30
	ObjectsBytes = 16 << 30
	BundleBytes  = 4 << 30
	DeltaBytes   = 256 << 20
	GitMemory    = 3 << 30
	GitSeconds   = 600
	IndexBytes   = 1 << 30 // about 100 bytes per file

	RuleFile  = 1 << 20
	RuleFiles = 50_000
	RuleBytes = 32 << 20
	RuleWork  = 60
)

// repositories returns the bounds on work trees, their rules and objects.
func repositories() area {
	const (
		refused   = "nothing is imported: `too_large`"
		storms    = "internal/repo/storm_linux_test.go "
		snapshots = "internal/repo/snapshot_linux_test.go "
		killed    = "git is killed and nothing is imported: `invalid`"
		invalid   = "nothing is imported: `invalid`"
		accepts   = "internal/repo/accept_linux_test.go TestAccept_EnforcesLimits" + lowered
		opens     = "internal/repo/open_linux_test.go "
	)
	return area{title: "Repositories", bounds: []Bound{
		{"a path of a work tree", TreePath, "bytes", "the file is left out, and listed as skipped",
			storms + "TestSnapshot_SkipsPathsBeyondPathMax"},
		{"paths of a work tree that are held in memory", TreePaths, "bytes", refused,
			storms + "TestSnapshot_BoundsPaths"},
		{"entries of a work tree", TreeEntries, "entries", refused, snapshots + "TestSnapshot_EnforcesLimits" + lowered},
		{"paths of a work tree that differ from the commit", TreeChanges, "paths", refused,
			snapshots + "TestSnapshot_EnforcesLimits" + lowered},
		{"a file of a work tree", ObjectBytes, "bytes", refused, snapshots + "TestSnapshot_EnforcesLimits" + lowered},
		{"a bundle of commits", BundleBytes, "bytes", invalid, accepts},
		{"unpacked objects of a bundle", ObjectsBytes, "bytes", invalid, accepts},
		{"a patch", DeltaBytes, "bytes", invalid, opens + "TestDifferences" + lowered},
		{"memory of a git that reads what a sandbox wrote", GitMemory, "bytes", killed,
			opens + "TestAccept_RefusesBombWithinLimits" + lowered},
		{"processor time of a git that reads what a sandbox wrote", GitSeconds, "seconds", killed,
			opens + "TestGit_IsKilledAtCPULimit" + lowered},
		{"the git index of the base that a sandbox is created from", IndexBytes, "bytes",
			"the sandbox is not created: `too_large`", "internal/worktree/worktree_test.go TestGitIndex_RefusesTooLarge"},
		{"a `.gitignore` of a work tree", RuleFile, "bytes", "its rules are not applied",
			storms + "TestSnapshot_ReadsRulesOnlyFromFiles"},
		{"`.gitignore` files of a work tree", RuleFiles, "files", refused, storms + "TestSnapshot_BoundsIgnoreRules"},
		{"ignore rules of a work tree", RuleBytes, "bytes", refused, storms + "TestSnapshot_BoundsIgnoreRules"},
		{"processor time of a git that matches ignore rules", RuleWork, "seconds", refused,
			storms + "TestSnapshot_BoundsTheWorkOfIgnoreRules" + lowered},
	}}
}

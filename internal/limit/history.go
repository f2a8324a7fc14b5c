package limit

// ManifestHoles is the maximum size of holes in the files of a layer that are hashed as zeros and written to tar. Only
// the data of further files is hashed.
const ManifestHoles = 256 << 20

// The bounds on snapshots, layers and requests about them.
const (
	// Depth is the maximum depth of directories, in a live root and in its snapshots. Walks recurse, and a goroutine's
	// stack ends the process at 1 GB.
	Depth = 50_000
	// LiveEntries is the maximum number of files and directories in a live root, besides its layers. A capture holds
	// all of them in memory, with LiveEntry bytes for each at most: see Entries.
	LiveEntries = 20_000_000
	LiveEntry   = 240
	// DiffEntries and DiffBytes bound the changes in one answer, and the bytes of their paths.
	DiffEntries = 100_000
	DiffBytes   = 16 << 20
	// DiskUseNames is the maximum number of directory names that a measurement of the home holds, and DiskUseLinks that
	// of unused files with several names. Further ones are not counted, and the answer says so.
	DiskUseNames = 1 << 20
	DiskUseLinks = 1 << 20

	// ChosenPaths and ChosenBytes bound the paths that a diff or a patch is limited to,
	// and their bytes.
	ChosenPaths = 10_000
	ChosenBytes = 1 << 20
	// DirNames is the maximum number of entries of one directory that a comparison holds, for each side: those that can
	// differ, or all if that is not known.
	DirNames = 300_000
	// NamedPaths and NamedBytes bound the changed paths that a capture names, in total; NamedPath bounds each path:
	// PATH_MAX, the longest that a program can open.
	NamedPaths = 1000
	NamedBytes = 256 << 10
	NamedPath  = 4096
	// PatchBytes bounds the bytes of the paths in a patch, and in the list of a sandbox's changes to a repository.
	PatchBytes = 128 << 20
	// ListEntries and ListBytes bound a list of files, live or of a snapshot: its entries, and
	// the bytes of their paths and link targets, which may be six times as many in JSON.
	ListEntries = 100_000
	ListBytes   = 32 << 20
	// WatchPath is the maximum length of the path of a watched directory, in bytes.
	WatchPath = 4096
	// Watchers is the maximum number of clients that watch the files of one sandbox, and WatchersOfAll that for all
	// sandboxes. WatchedDirectories is the maximum number of watched directories of one sandbox, and WatchQueue that of
	// the events queued for one client.
	Watchers           = 32
	WatchersOfAll      = 256
	WatchedDirectories = 16 << 10
	WatchQueue         = 4096
	// ManifestBytes bounds the bytes of the paths, targets and attributes in a layer's manifest, plus ManifestEntry for
	// each entry. The manifest contains each path in full, so its size grows with the square of the depth of nested
	// directories. ManifestEntries bounds the entries, which are all in memory when a layer is finalized or verified.
	ManifestBytes   = 64 << 20
	ManifestEntry   = 256
	ManifestEntries = 2_000_000
	// MessagePath is the maximum size of a path in an error message, in bytes.
	MessagePath = 1 << 10
	// DiffLines is the maximum size of a file that is compared by lines, and DiffLineCount the maximum number of its
	// lines: each takes hundreds of bytes of memory, however short it is.
	DiffLines     = 8 << 20
	DiffLineCount = 200_000
	// GraphBytes bounds the graph of a history, whose size grows with the square of the number of lanes that join from
	// afar.
	GraphBytes = 4 << 20
)

// Entries returns the maximum number of files and directories of a live root for a daemon that may use memory bytes: a
// capture takes at most half of them.
func Entries(memory int64) int64 { return max(1, min(memory/2/LiveEntry, LiveEntries)) }

const withoutManifest = "the snapshot has no manifest: it is flushed and can be checked out, but neither verified " +
	"nor exported; `verify` counts it as `unverifiable`"

const watchesTest = "internal/boxfs/watches_test.go "

const (
	deepTest = "internal/layer/deep_test.go "
	diffTest = "internal/layer/diff_bounds_test.go "
)

// history returns the bounds on snapshots, layers and requests about them.
func history() area {
	return area{title: "History", bounds: []Bound{
		{
			Name: "holes in the files of a layer that are hashed as zeros", Value: ManifestHoles, Unit: "bytes",
			Reached: "further files are hashed without their holes (manifest version 2); such a layer cannot be pushed or " +
				"packed: `too_large`",
			Test: "internal/layer/sparse_test.go TestFinalize_ReadsOnlyDataOfSparseFiles",
		},
		{"depth of nested directories", Depth, "levels", "`too_large`, with the path; earlier snapshots are not affected",
			deepTest + "TestCapture_RefusesTooDeepTree"},
		{"files and directories of a live root beside its layers; fewer where a capture of them would take more than half " +
			"of the daemon's soft memory limit", LiveEntries, "entries",
			"`too_large`, with the directory; earlier snapshots are not affected",
			deepTest + "TestCapture_RefusesMoreEntriesThanItsLimit" + lowered},
		{"memory that a capture takes for each of these", LiveEntry, "bytes", "the number of entries is limited",
			"internal/limit/limit_test.go TestEntries_LeaveHalfOfTheMemory"},
		{"changes in one answer", DiffEntries, "entries", "the answer says `truncated`; where all are needed, `too_large`",
			diffTest + "TestDiff_BoundsListedChanges"},
		{"paths of the changes in one answer", DiffBytes, "bytes",
			"the answer says `truncated`; where all are needed, `too_large`",
			deepTest + "TestDeepTree_CostIsLinear"},
		{"paths that a diff or a patch is limited to", ChosenPaths, "paths", "`too_large`",
			"internal/engine/deep_test.go TestDiff_BoundsChosenPaths"},
		{"bytes of the paths that a diff or a patch is limited to", ChosenBytes, "bytes", "`too_large`",
			"internal/engine/deep_test.go TestDiff_BoundsChosenPaths"},
		{"names of directories held by `system df`", DiskUseNames, "names", "not counted, and the answer says `partial`",
			"internal/diskuse/tree_linux_test.go TestTree_CountsUpToItsBounds" + lowered},
		{"unused files of several names held by `system df`", DiskUseLinks, "files", "not counted as reclaimable, and " +
			"the answer says `partial`", "internal/diskuse/tree_linux_test.go TestTree_CountsUpToItsBounds" + lowered},
		{"entries of one directory in a diff", DirNames, "entries", "`too_large`",
			"internal/layer/mdir_test.go TestDiff_BoundsDirectory" + lowered},
		{"bytes of the paths in a snapshot's message", NamedBytes, "bytes", "further ones are only counted",
			deepTest + "TestDeepTree_CostIsLinear"},
		{"paths, targets and attributes in a snapshot's manifest", ManifestBytes, "bytes", withoutManifest,
			deepTest + "TestFinalize_FlushesLayerTooLargeForManifest"},
		{"room that each entry of a manifest adds to these", ManifestEntry, "bytes", withoutManifest,
			deepTest + "TestFinalize_FlushesLayerTooLargeForManifest"},
		{"entries of a snapshot's manifest", ManifestEntries, "entries", withoutManifest,
			deepTest + "TestFinalize_FlushesLayerTooLargeForManifest"},
		{"paths of a patch, and of what a sandbox changed in a repository", PatchBytes, "bytes", "`too_large`",
			deepTest + "TestPatch_RefusesPathsBeyondItsLimit"},
		{"files in a list", ListEntries, "entries", "`too_large`",
			"internal/boxfs/bounds_test.go TestList_RefusesMoreEntriesThanItsLimit" + lowered},
		{"paths and link targets in a list of files", ListBytes, "bytes", "`too_large`",
			"internal/boxfs/bounds_test.go TestList_RefusesPathsBeyondItsLimit"},
		{"a path of a watched directory", WatchPath, "bytes", "an event `overflow`; deeper directories are not watched",
			"internal/boxfs/bounds_test.go TestWatch_OmitsLongPaths"},
		{"watchers of the files of one sandbox, which share an inotify instance", Watchers, "watchers", "`unavailable`",
			watchesTest + "TestWatches_BoundsTheWatchersOfASandbox"},
		{"watchers of the files of all sandboxes", WatchersOfAll, "watchers", "`unavailable`",
			watchesTest + "TestWatches_BoundsTheWatchersOfAll"},
		{"directories watched in one sandbox", WatchedDirectories, "directories",
			"an event `overflow`; further ones are not watched", watchesTest + "TestWatches_BoundsTheDirectories"},
		{"events queued for a watcher", WatchQueue, "events", "an event `overflow`; further ones are lost",
			watchesTest + "TestWatches_SlowReaderDoesNotBlock"},
		{"paths in a snapshot's message", NamedPaths, "paths", "further ones are only counted",
			deepTest + "TestCapture_NamesTheFirstPaths"},
		{"a path in a snapshot's message", NamedPath, "bytes", "it and further ones are only counted",
			deepTest + "TestCapture_NamesTheFirstPaths"},
		{"size of a file that is compared by lines", DiffLines, "bytes", "the file counts as binary",
			diffTest + "TestDiff_CountsNoLinesOfALargeFile"},
		{"lines of a file that is compared by lines", DiffLineCount, "lines", "the file counts as binary",
			diffTest + "TestDiff_BoundsCountedLines"},
		{"the graph of a history", GraphBytes, "bytes", "the answer says `truncated`, and lists all snapshots",
			"internal/timeline/graph_test.go TestGraph_StopsAtLimit"},
		{"a path in an error message", MessagePath, "bytes", "the message shows its end",
			deepTest + "TestMessages_ShortenLongPaths"},
	}}
}

package limit

import "time"

// The bounds on the socket inside a sandbox, which untrusted programs use. The socket outside, of the same protocol,
// has the same bounds as any other request.
const (
	// LineChanges and LineChangeBytes bound the changes in one answer, and the bytes of their paths.
	LineChanges     = 1000
	LineChangeBytes = 256 << 10
	// LineNodes is the maximum number of snapshots in one answer.
	LineNodes = 1000
	// LineText is the maximum length of a message.
	LineText = 4 << 10
	// LineInside is the maximum length of a line. LineShort is the length up to which a line is read without taking one
	// of the LineLong places for long lines.
	LineInside = 64 << 10
	LineShort  = 16 << 10
	LineLong   = 2
	// LineRequest is the maximum length of a line on the socket outside.
	LineRequest = 64 << 20
	// LinePaths is the maximum number of paths in a request.
	LinePaths = 1000
	// LineTurns is the maximum number of concurrent requests of one sandbox.
	LineTurns = 2
	// LineConnections is the maximum number of connections of one sandbox.
	LineConnections = 32
	// InsideTrialsAtOnce is the maximum number of concurrent trials of all sandboxes; a sandbox has one at a time.
	// InsideTrialTime is the time limit of a trial.
	InsideTrialsAtOnce = 8
	InsideTrialTime    = insideTrialMinutes * time.Minute
	insideTrialMinutes = 10
)

const lineTest = "internal/lineapi/lineapi_test.go "

// line returns the bounds on the socket inside a sandbox.
func line() area {
	return area{title: "The socket inside a sandbox", bounds: []Bound{
		{"changes in one answer", LineChanges, "entries", "the answer says `truncated`",
			"internal/lineapi/bounds_test.go TestGuest_BoundsChanges"},
		{"paths of the changes in one answer", LineChangeBytes, "bytes", "the answer says `truncated`",
			"internal/engine/deep_test.go TestDiff_TruncatesNestedDirectories"},
		{"snapshots in one answer", LineNodes, "entries", "the answer has the newest, and says `truncated`",
			"internal/lineapi/bounds_test.go TestGuest_ListsNewestSnapshots"},
		{"a request", LineInside, "bytes", "`invalid`: the line is skipped",
			"internal/lineapi/bounds_test.go TestGuest_LineUsesLittleMemory"},
		{"a request on the socket outside", LineRequest, "bytes", "`invalid`: the line is skipped",
			lineTest + "TestLines_OfMaximumLength"},
		{"paths that a diff is limited to", LinePaths, "paths", "`too_large`",
			"internal/lineapi/bounds_test.go TestGuest_BoundsPaths"},
		{"a request that counts as short", LineShort, "bytes", "it waits until it may be read as a long one",
			lineTest + "TestHostileClient_IsBounded"},
		{"long requests of all sandboxes at a time", LineLong, "requests", "further ones wait",
			lineTest + "TestHostileClient_IsBounded"},
		{"requests of one sandbox at a time", LineTurns, "requests", "further ones wait",
			"internal/lineapi/bounds_test.go TestGuest_LimitsConcurrentRequests"},
		{"connections of one sandbox", LineConnections, "connections", "`unavailable`",
			lineTest + "TestHostileClient_IsBounded"},
		{"a message, also of a mark, and the command of a trial", LineText, "bytes", "`invalid`",
			lineTest + "TestHostileClient_IsBounded"},
		{"trials of all sandboxes at a time; a sandbox has one", InsideTrialsAtOnce, "trials", "`unavailable`",
			"internal/engine/inside_test.go TestTrialInside_IsRefusedBeyondTheLimit"},
		{"time of a trial", insideTrialMinutes, "minutes", "the command is killed, and its exit code is 124",
			"internal/engine/inside_test.go TestTrialInside_HasALimit"},
	}}
}

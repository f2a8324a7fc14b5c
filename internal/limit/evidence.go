package limit

import "time"

// The bounds on records. The records that a sandbox causes without its owner have a budget for each class of evidence.
// An exhausted budget refills evenly within EvidenceRefill.
const (
	// EvidenceRefill is the time in which an exhausted budget refills. So a sandbox adds at most five times a budget on
	// its first day, and four times on each further day.
	EvidenceRefill = evidenceHours * time.Hour
	evidenceHours  = 6
	// EvidenceDecoys, EvidenceRefusals, EvidenceFiles and EvidenceDenials are the budgets, in bytes, of records that
	// indicate an attack: opened decoys, refused system calls, refused files, and denials of the gate.
	EvidenceDecoys   = 1 << 20
	EvidenceRefusals = 4 << 20
	EvidenceFiles    = 4 << 20
	EvidenceDenials  = 8 << 20
	// EvidenceNetwork is the budget of all other records of the gate.
	EvidenceNetwork = 16 << 20
	// EvidencePrograms is the budget of records of programs, and EvidenceLists that of the complete lists that such
	// records summarize.
	EvidencePrograms = 16 << 20
	EvidenceLists    = 32 << 20
	// InsideChanges is the maximum number of snapshots, rewinds and tags requested inside within EvidenceRefill, and
	// AutoSnapshots that of automatic snapshots.
	InsideChanges = 1000
	AutoSnapshots = 10_000
	// InsideTrials is the maximum number of trials requested inside within EvidenceRefill. Each leaves a short ledger of
	// its fork: TrialOutput is how many bytes of each stream of its command are recorded at most, and TrialPaths how many
	// of the paths that it changed.
	InsideTrials = 240
	TrialOutput  = 16 << 10
	TrialPaths   = 4 << 10
	// RekeyHooks is the maximum number of programs of a sandbox that re-key a fork, RekeyOutput how many bytes of each
	// stream of one are recorded at most, and RekeyPaths how many of the paths that it changed.
	RekeyHooks  = 16
	RekeyOutput = 1 << 10
	RekeyPaths  = 1 << 10
	// LostInterval is the time between records of lost network events, and ProgramsInterval the time between records of
	// programs, once some were omitted.
	LostInterval     = lostSeconds * time.Second
	lostSeconds      = 60
	ProgramsInterval = programSeconds * time.Second
	programSeconds   = 10

	// RecordText is the maximum size in a record of a text from outside, in bytes, RecordArgs of all arguments of a
	// command, RecordNames of names (of variables, of candidates), and RecordPaths of the paths that a command changed.
	RecordText  = 4 << 10
	RecordArgs  = 64 << 10
	RecordNames = 16 << 10
	RecordPaths = 64 << 10
	// RecordChanges is the maximum number of changed paths in a record.
	RecordChanges = 256
	// RecordIDs is the maximum number of snapshots in a record.
	RecordIDs = 4096
	// RecordsUnsaid is the maximum number of records queued until the ledger can be written again.
	RecordsUnsaid = 4096
	// ProgramGroups is the maximum number of records for the programs of an interval, and ProgramsHeld roughly the size
	// at which the interval ends early, in bytes.
	ProgramGroups = 64
	ProgramsHeld  = 4 << 20
)

// evidence returns the bounds on records.
func evidence() area {
	const (
		budgets = "internal/engine/budget_test.go "
		classes = "internal/audit/budget_test.go TestBudget_SeparatesClasses"
		network = budgets + "TestNetworkRecords_StayWithinBudget"
		program = budgets + "TestProgramRecords_StayWithinBudget"
		texts   = budgets + "TestRecords_CarryBoundedTexts"
		trials  = "internal/engine/inside_test.go TestTrialInside_LeavesAShortLedger"
		rekeys  = "internal/restore/release_test.go TestRekeyFork_IsBounded"
		lost    = "a `lost` record counts the others"
		more    = "the record counts the others"
	)
	return area{title: "Evidence", bounds: []Bound{
		{"time in which an exhausted budget of a sandbox refills, evenly", evidenceHours, "hours",
			"the budget is full again; a restarted daemon finds in the ledger what was spent",
			"internal/audit/budget_test.go TestBudget_RefillsEvenly"},
		{"budget for records of decoys that were opened", EvidenceDecoys, "bytes", lost, classes},
		{"budget for records of refused system calls", EvidenceRefusals, "bytes", lost, classes},
		{"budget for records of refused files", EvidenceFiles, "bytes", lost, classes},
		{"budget for records of denied network access", EvidenceDenials, "bytes", lost, classes},
		{"budget for other records of the network", EvidenceNetwork, "bytes", lost, network},
		{"budget for records of programs", EvidencePrograms, "bytes", lost, program},
		{"budget for lists of programs that one record sums up", EvidenceLists, "bytes",
			"programs are counted and not listed, and a `lost` record says so", program},
		{"budget for snapshots, rewinds and tags requested inside", InsideChanges, "changes",
			"`unavailable`, with the time to wait", budgets + "TestMark_RefusesBeyondTheBudget"},
		{"budget for trials requested inside", InsideTrials, "trials", "`unavailable`, with the time to wait",
			"internal/engine/inside_test.go TestTrialInside_ChargesItsSandbox"},
		{"output of the command of a trial requested inside, each stream", TrialOutput, "bytes",
			"the middle is left out of the record", trials},
		{"changed paths in the record of that command", TrialPaths, "bytes", "`changes_total` counts all of them", trials},
		{"programs of a sandbox that re-key a fork", RekeyHooks, "programs", "`invalid`: the fork runs no command", rekeys},
		{"output of such a program, each stream", RekeyOutput, "bytes", "the middle is left out of the record", trials},
		{"changed paths in the record of such a program", RekeyPaths, "bytes", "`changes_total` counts all of them", trials},
		{"budget for automatic snapshots of a sandbox", AutoSnapshots, "snapshots", "they are delayed",
			budgets + "TestAutomaticCapture_WaitsForBudget"},
		{"interval between `lost` records of the network, unless a command ends", lostSeconds, "seconds",
			"losses are counted until then", network},
		{"interval between records of programs", programSeconds, "seconds",
			"records are written, and a `lost` one if some were left out", program},
		{"records of programs in one interval", ProgramGroups, "records", "one more record sums up the others",
			budgets + "TestFetchPrograms_IsBounded"},
		{"programs held in memory, about", ProgramsHeld, "bytes", "they are recorded at once",
			budgets + "TestFetchPrograms_IsBounded"},
		{"a text in a record", RecordText, "bytes", "it is truncated, and ends with `...`", texts},
		{"the arguments of a command in a record", RecordArgs, "bytes", more, texts},
		{"names of variables or candidates in a record", RecordNames, "bytes", more, texts},
		{"changed paths in the record of a command", RecordChanges, "paths", "`changes_total` counts all of them", texts},
		{"bytes of these paths", RecordPaths, "bytes", "`changes_total` counts all of them", texts},
		{"deleted snapshots in one record", RecordIDs, "snapshots", "another record lists the others", texts},
		{"records queued until the ledger can be written", RecordsUnsaid, "records", lost,
			"internal/audit/book_linux_test.go TestKeepLate_CountsExcessRecords"},
	}}
}

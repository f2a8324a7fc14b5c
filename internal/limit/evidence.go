package limit

import "time"

// The bounds on what is recorded. What a sandbox causes by itself has a budget of its own
// for each class of evidence: a class that is used up fills evenly within EvidenceRefill.
const (
	// EvidenceRefill is how long a budget that is used up takes to fill. So a sandbox adds
	// at most five times a budget in its first day, and four times in each other one.
	EvidenceRefill = evidenceHours * time.Hour
	evidenceHours  = 6
	// EvidenceDecoys, EvidenceRefusals and EvidenceDenials are the budgets, in bytes, of what
	// tells of an attack: decoys that were touched, system calls that were refused, and
	// what the gate denied.
	EvidenceDecoys   = 1 << 20
	EvidenceRefusals = 4 << 20
	EvidenceDenials  = 8 << 20
	// EvidenceNetwork is that of all else that the gate tells.
	EvidenceNetwork = 16 << 20
	// EvidencePrograms is that of records of programs, and EvidenceLists that of the lists
	// of all for which one record stands.
	EvidencePrograms = 16 << 20
	EvidenceLists    = 32 << 20
	// InsideChanges is how many snapshots, rewinds and tags the inside may ask for, and
	// AutoSnapshots how many snapshots its changes may cause by themselves, within
	// EvidenceRefill.
	InsideChanges = 1000
	AutoSnapshots = 10_000
	// LostInterval is how often a record says what of the network was not recorded, and
	// ProgramsInterval how often programs are recorded, at least, once some were not.
	LostInterval     = lostSeconds * time.Second
	lostSeconds      = 60
	ProgramsInterval = programSeconds * time.Second
	programSeconds   = 10

	// RecordText is as much as a record carries of one text that comes from outside, in
	// bytes; RecordArgs of all the words of a command, RecordNames of names (of variables,
	// of candidates), and RecordPaths of the paths that a command changed.
	RecordText  = 4 << 10
	RecordArgs  = 64 << 10
	RecordNames = 16 << 10
	RecordPaths = 64 << 10
	// RecordChanges is how many of these paths a record names.
	RecordChanges = 256
	// RecordIDs is how many snapshots one record names.
	RecordIDs = 4096
	// RecordsUnsaid is how many records wait until the ledger can be written again.
	RecordsUnsaid = 4096
	// ProgramGroups is how many records the programs of an interval become, and
	// ProgramsHeld about how many bytes of them are held before it ends early.
	ProgramGroups = 64
	ProgramsHeld  = 4 << 20
)

// evidence are the bounds on what is recorded.
func evidence() area {
	const (
		budgets = "internal/engine/budget_test.go "
		classes = "internal/budget/budget_test.go TestBudget_ClassesAreApart"
		network = budgets + "TestTellNet_RecordsNoMoreThanTheBudget"
		program = budgets + "TestPrograms_AreRecordedWithinTheBudget"
		texts   = budgets + "TestRecords_CarryBoundedTexts"
		lost    = "a `lost` record counts what is not recorded"
		more    = "the record says how many more there are"
	)
	return area{title: "Evidence", bounds: []Bound{
		{"time in which a budget of a sandbox that is used up fills, evenly", evidenceHours, "hours", "what follows has a budget again; a daemon that is started again finds in the ledger what was spent", "internal/budget/budget_test.go TestBudget_FillsEvenly"},
		{"budget for records of touches of decoys", EvidenceDecoys, "bytes", lost, classes},
		{"budget for records of system calls that were refused", EvidenceRefusals, "bytes", lost, classes},
		{"budget for records of what the gate denied", EvidenceDenials, "bytes", lost, classes},
		{"budget for records of all else in the network", EvidenceNetwork, "bytes", lost, network},
		{"budget for records of programs", EvidencePrograms, "bytes", lost, program},
		{"budget for lists of programs for which one record stands", EvidenceLists, "bytes", "programs are counted and not listed, which a `lost` record says", program},
		{"budget for snapshots, rewinds and tags that the inside asks for", InsideChanges, "changes", "`unavailable`, with the time after which the next is taken", budgets + "TestMark_RefusesBeyondTheBudget"},
		{"budget for snapshots of what a supervised command changed", AutoSnapshots, "snapshots", "they are taken later", budgets + "TestCaptureByItself_WaitsForTheBudget"},
		{"between two `lost` records of the network, but for ends of commands", lostSeconds, "seconds", "it is counted until then", network},
		{"until programs are recorded", programSeconds, "seconds", "records are written, and a `lost` one where some are", program},
		{"records of the programs of one interval, and one of all others", ProgramGroups, "records", "the others are summed up", budgets + "TestFetchPrograms_HoldsNoMoreThanTheLimit"},
		{"programs that are held, about", ProgramsHeld, "bytes", "they are recorded at once", budgets + "TestFetchPrograms_HoldsNoMoreThanTheLimit"},
		{"a text in a record", RecordText, "bytes", "it is cut off, and ends with `...`", texts},
		{"the words of a command in a record", RecordArgs, "bytes", more, texts},
		{"names in a record: of variables, of candidates", RecordNames, "bytes", more, texts},
		{"paths that a command changed, in its record", RecordChanges, "paths", "`changes_total` says how many there are", texts},
		{"these paths together", RecordPaths, "bytes", "`changes_total` says how many there are", texts},
		{"snapshots that are gone, in one record", RecordIDs, "snapshots", "another record has the others", texts},
		{"records that wait until the ledger can be written", RecordsUnsaid, "records", lost, budgets + "TestKeepUnsaid_CountsWhatIsTooMuch"},
	}}
}

package limit

// Bounds on archives: those that a user imports, those that are unpacked inside a sandbox, and layers in a proposal.
const (
	ArchiveName    = 4095       // PATH_MAX without its NUL; the depth of a name is at most half of it
	ArchiveKept    = 128 << 20  // bytes of state; enough for 500,000 directories with plain names
	ArchiveReports = 10_000     // lines
	ArchiveEntries = 20_000_000 // of an archive that becomes a sandbox's base
	ArchiveBytes   = 256 << 30
	ArchiveRatio   = 200
	ArchiveWindow  = 512 << 20

	UnpackEntries = 5_000_000 // of an archive unpacked inside a sandbox
	UnpackReports = 1000
	UnpackWindow  = 128 << 20

	LayerBytes = 64 << 30 // of a layer in a proposal
)

// archives returns the bounds on archives and images from outside.
func archives() area {
	const (
		refused = "the archive is refused: `too_large`"
		imports = "internal/layer/tarimport_test.go "
		unpacks = "internal/boxfs/tar_test.go "
		opens   = "internal/archive/archive_test.go "
	)
	return area{title: "Archives and images", bounds: []Bound{
		{"a name in an archive", ArchiveName, "bytes", refused, imports + "TestImportTar_RefusesNamesBeyondPathMax"},
		{"names and attributes of the directories in an archive", ArchiveKept, "bytes",
			refused + "; when unpacked inside a sandbox, further directories get no mode and time, and the report says so",
			imports + "TestImportTar_BoundsDirectoryAttributes"},
		{"entries of an archive that a sandbox is created from", ArchiveEntries, "entries", refused,
			imports + "TestImportTarBombs" + lowered},
		{"content of an archive, including holes", ArchiveBytes, "bytes", refused, imports + "TestImportTarBombs" + lowered},
		{"compression ratio of an archive", ArchiveRatio, "times", refused, opens + "TestArchive_RefusesBomb"},
		{"compression window of an archive", ArchiveWindow, "bytes", "the archive is refused: `invalid`",
			opens + "TestArchive_RefusesLargeWindow" + lowered},
		{"report of what an import left out", ArchiveReports, "lines", "the report ends with `and more`",
			imports + "TestImportTar_BoundsItsReport"},
		{"entries of an archive that is unpacked inside a sandbox", UnpackEntries, "entries", refused,
			unpacks + "TestTarFrom_RefusesBombs" + lowered},
		{"compression window of an archive that is unpacked inside a sandbox", UnpackWindow, "bytes",
			"the archive is refused: `invalid`", unpacks + "TestTarFrom_RefusesAWindowBeyondItsLimit"},
		{"content of a layer that comes with a proposal", LayerBytes, "bytes", "the layer is refused: `too_large`",
			"internal/layer/layerimport_test.go TestImportLayer_BoundsBytes" + lowered},
		{"report of what unpacking inside a sandbox left out", UnpackReports, "lines", "the report ends with `and more`",
			unpacks + "TestTarFrom_BoundsItsReport"},
	}}
}

package limit

// The bounds on the labels of one sandbox, which clients set. All labels together fit several times into a record of
// the audit log.
const (
	// Labels is the maximum number of labels of a sandbox.
	Labels = 64
	// LabelKey and LabelValue are the maximum lengths of a key and a value, in bytes.
	LabelKey   = 128
	LabelValue = 4 << 10
	// LabelBytes bounds the keys and values of all labels of a sandbox.
	LabelBytes = 16 << 10
	// FilterTerms is the maximum number of filters in one request.
	FilterTerms = 100
)

// sandboxes returns the bounds on what clients attach to a sandbox, and on how they choose sandboxes.
func sandboxes() area {
	const test = "internal/label/label_test.go TestChange_IsBounded"
	return area{title: "Labels of sandboxes", bounds: []Bound{
		{"labels of a sandbox", Labels, "labels", "`too_large`", test},
		{"the key of a label", LabelKey, "bytes", "`too_large`", test},
		{"the value of a label", LabelValue, "bytes", "`too_large`", test},
		{"the keys and values of all labels of a sandbox", LabelBytes, "bytes", "`too_large`", test},
		{"terms of a filter", FilterTerms, "terms", "`too_large`",
			"internal/filter/filter_test.go TestParse_RefusesTooManyTerms"},
	}}
}

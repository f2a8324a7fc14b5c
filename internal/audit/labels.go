package audit

import (
	"slices"

	"github.com/coppice-dev/coppice/internal/label"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// Labels returns the labels of a sandbox for a record, as KEY=VALUE in the order of their keys, redacted. It is nil if
// there are none.
func (c Cleaner) Labels(labels map[string]string) (texts []string) {
	for _, l := range label.List(labels) {
		texts = append(texts, c.RecordText(l))
	}
	return texts
}

// unlabelled returns, of the records of kinds create and labels of a sandbox in their order, the changes of labels that
// did not happen, if the sandbox has the labels now: those after the newest record that says now. Each change is stored
// before the next is recorded, so the changes that a crash lost are the newest.
func unlabelled(all []*format.Record, now []string) (lost []*format.Record) {
	for i := len(all) - 1; i >= 0; i-- {
		switch b := all[i].Body.(type) {
		case *format.Create:
			if slices.Equal(b.Labels, now) {
				return lost
			}
		case *format.Labels:
			if slices.Equal(b.Labels, now) {
				return lost
			}
			lost = append(lost, all[i])
		}
	}
	return lost
}

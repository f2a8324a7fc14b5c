package meta

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Finding records whether the host provides a protection, as found at the start of a sandbox.
type Finding struct {
	Protection string `json:"protection"`
	On         string `json:"on,omitempty"`    // type of file system, if it depends on one
	Lacks      string `json:"lacks,omitempty"` // the host's answer; "" if it provides the protection
	Kernel     string `json:"kernel"`          // the release of the kernel that answered
}

const settingFindings = "findings"

// Findings returns the findings of the home's starts, in the order in which each was first made.
func (d *DB) Findings(ctx context.Context) ([]Finding, error) {
	text, err := d.Setting(ctx, settingFindings)
	if err != nil {
		return nil, err
	}
	return decodeFindings(text)
}

func decodeFindings(text string) (all []Finding, err error) {
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fault.New(fault.Corrupt, "the findings about the host are malformed").Because(err).WithHint(corruptHint)
	}
	return all, nil
}

// AddFindings adds the findings of a start, and returns all findings. A finding that the host provides a
// protection is never replaced. A finding that it lacks one is replaced by the opposite, or by what another
// kernel lacks.
func (d *DB) AddFindings(ctx context.Context, found []Finding) (known []Finding, err error) {
	if known, err = d.Findings(ctx); err != nil {
		return nil, err
	}
	if _, more := mergeFindings(known, found); !more {
		return known, nil // the usual case, without a write
	}
	err = d.tx(ctx, func(t *tx) error {
		var text string
		t.each("SELECT value FROM settings WHERE key=?", func(s scanner) error { return s.Scan(&text) }, settingFindings)
		if t.err != nil {
			return t.err
		}
		before, err := decodeFindings(text)
		if err != nil {
			return err
		}
		known, _ = mergeFindings(before, found)
		after, err := json.Marshal(known)
		if err != nil {
			return err
		}
		t.set(settingFindings, string(after))
		return nil
	})
	return known, err
}

// mergeFindings merges findings; more reports whether found adds to known.
func mergeFindings(known, found []Finding) (all []Finding, more bool) {
	all = slices.Clone(known)
	for _, f := range found {
		i := slices.IndexFunc(all, func(k Finding) bool { return k.Protection == f.Protection && k.On == f.On })
		switch {
		case i < 0:
			all, more = append(all, f), true
		case all[i].Lacks != "" && (f.Lacks == "" || f.Kernel != all[i].Kernel):
			all[i], more = f, true
		}
	}
	return all, more
}

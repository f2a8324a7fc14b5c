//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
)

// maxSettings is how many answers of evidence are remembered.
const maxSettings = 1 << 10

// evidence gives what is kept as evidence of a sandbox, by its policy. Policies do not
// change but by their rules for the network, so it is remembered by the digest.
func (e *Engine) evidence(ctx context.Context, rec *meta.Sandbox) (policy.Evidence, error) {
	if rec.Policy == "" {
		return policy.DefaultEvidence(), nil
	}
	e.mu.Lock()
	v, known := e.settings[rec.Policy]
	e.mu.Unlock()
	if known {
		return v, nil
	}
	p, err := e.policyOf(ctx, rec)
	if err != nil {
		return policy.Evidence{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.settings) >= maxSettings {
		clear(e.settings)
	}
	e.settings[rec.Policy] = p.Evidence
	return p.Evidence, nil
}

//go:build linux

package policies

import (
	"context"

	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
)

// maxEvidence is the maximum number of cached results of Evidence.
const maxEvidence = 1 << 10

// Evidence returns what is recorded as evidence of a sandbox, by its policy. It is cached by the policy's digest.
func (s *Policies) Evidence(ctx context.Context, rec *meta.Sandbox) (policy.Evidence, error) {
	if rec.Policy == "" {
		return policy.DefaultEvidence(), nil
	}
	s.mu.Lock()
	v, known := s.kept[rec.Policy]
	s.mu.Unlock()
	if known {
		return v, nil
	}
	p, err := s.Of(ctx, rec)
	if err != nil {
		return policy.Evidence{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.kept) >= maxEvidence {
		clear(s.kept)
	}
	s.kept[rec.Policy] = p.Evidence
	return p.Evidence, nil
}

//go:build linux

// Package policies evaluates the policies of sandboxes. It makes the policy of a request from files and flags, pins it
// in the record of a sandbox, and reads it back with its temporary rules. From a policy it derives what the engine
// enforces: access to paths, hidden paths, decoys, limits and evidence. It reads records and never writes any.
//
// The engine imports it; it never imports the engine.
package policies

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
)

// workspace is the tier without confinement; it has no separate root file system.
const workspace = string(policy.Workspace)

// Gated reports whether all network traffic of a sandbox passes a gate: in most tiers whatever its policy says, and in
// tier workspace if the policy has rules.
func Gated(rec *meta.Sandbox) bool {
	if rec.Tier == workspace {
		return rec.Net == string(policy.NetRules)
	}
	return slices.Contains([]policy.Tier{policy.Supervised, policy.Container, policy.GVisor}, policy.Tier(rec.Tier))
}

// RunsAs returns the user that the commands of a sandbox run as, for people and for records. That is the configured
// one, except in tier container under a daemon that is not root: OCI runtimes start no container without uid 0, so
// that the daemon's user is root inside. daemon is the id of that user on the host.
func RunsAs(rec *meta.Sandbox, daemon uint32) string {
	if rec.Tier == string(policy.Container) && daemon != 0 && rec.User == "me" {
		return "root"
	}
	return rec.User
}

// Records are the records that policies are read from.
type Records interface {
	// Sandbox returns a sandbox by name or ID, or a NotFound error.
	Sandbox(ctx context.Context, ref string) (meta.Sandbox, error)
	// Policy returns the text of a policy, or of the origins of its settings, by its digest.
	Policy(ctx context.Context, digest string) (string, error)
	// BaseKey returns the key of a base, or "" if it has none.
	BaseKey(ctx context.Context, base string) (string, error)
}

// Config configures New. All fields are required.
type Config struct {
	Records Records
	Home    string   // COPPICE_HOME, which is never shown inside
	Homes   []string // home directories that ~ stands for in a policy
	// HostCopyKey is the key of the base that is a copy of the host.
	HostCopyKey string
	// CanLimitCPU returns why CPU limits cannot be enforced; nil if they can.
	CanLimitCPU func() error
	Now         func() time.Time
	Log         *slog.Logger
}

// Policies evaluates the policies of records. New creates one. All methods are safe for concurrent use. A method with
// a record uses the policy of the record, which need not be in the database yet: see Pin.
type Policies struct {
	config Config // never changed

	mu     sync.Mutex
	kept   map[string]policy.Evidence // results of Evidence, by the digests of policies; guarded by mu
	hidden map[string]Covered         // results of Hides; guarded by mu
}

// New returns a Policies.
func New(c Config) *Policies {
	return &Policies{config: c, kept: map[string]policy.Evidence{}, hidden: map[string]Covered{}}
}

// Phase is a policy in force until Until; the zero time is no end.
type Phase struct {
	Policy string // canonical text
	Digest string
	Until  time.Time
}

// Pin sets the policy of a record to p. It takes effect when the record is written.
func Pin(rec *meta.Sandbox, p policy.Policy) error {
	text, err := p.Canonical()
	if err != nil {
		return fault.Wrap(err, "write the policy")
	}
	// A policy that cannot be parsed again would keep the sandbox from starting.
	if _, err := policy.ParseCanonical(text); err != nil {
		return fault.New(fault.Invalid, "cannot store the policy").Because(err).
			WithHint("check it for invisible characters and a very long --env")
	}
	rec.Policy, rec.PolicyText, rec.Net = policy.DigestOf(text), string(text), string(p.Network.Mode)
	if rec.OriginsText, err = p.Origins(); err != nil {
		return err
	}
	rec.Origins = ""
	if rec.OriginsText != "" {
		rec.Origins = policy.DigestOf([]byte(rec.OriginsText))
	}
	return nil
}

// Text returns the canonical text of the policy of a record.
func (s *Policies) Text(ctx context.Context, rec *meta.Sandbox) (string, error) {
	if rec.PolicyText != "" {
		return rec.PolicyText, nil // it is not in the database yet
	}
	if rec.Policy == "" {
		old := *rec
		if err := pinOld(&old); err != nil {
			return "", fault.Wrap(err, "read the policy of sandbox %s", rec.Name)
		}
		return old.PolicyText, nil
	}
	text, err := s.config.Records.Policy(ctx, rec.Policy)
	switch {
	case err != nil:
		return "", fault.Wrap(err, "read the policy of sandbox %s", rec.Name)
	case policy.DigestOf([]byte(text)) != rec.Policy:
		return "", fault.New(fault.Corrupt, "the policy of sandbox %s is damaged: its digest is not "+
			"%s", rec.Name, rec.Policy).
			WithHint("create another sandbox from its files: coppice create --from %s", rec.Name)
	}
	return text, nil
}

// pinOld sets the policy of a record that was created before policies existed.
func pinOld(rec *meta.Sandbox) error {
	d, err := flagsDocument(wire.CreateRequest{Tier: rec.Tier, Net: rec.Net, Env: rec.Env, Limits: policy.Limits{
		MemoryBytes: rec.Limits.Memory, PIDs: rec.Limits.Pids, DiskBytes: rec.Limits.Disk}.String()})
	if err != nil {
		return err
	}
	p, err := policy.Merge(policy.Layer{Level: policy.Flags, Document: d})
	if err != nil {
		return err
	}
	return Pin(rec, p)
}

// Of returns the policy of a sandbox, without temporary rules.
func (s *Policies) Of(ctx context.Context, rec *meta.Sandbox) (policy.Policy, error) {
	text, err := s.Text(ctx, rec)
	if err != nil {
		return policy.Policy{}, err
	}
	p, err := policy.ParseCanonical([]byte(text))
	return p, fault.Wrap(err, "read the policy of sandbox %s", rec.Name)
}

// Runtime returns the OCI runtime of a sandbox of tier container, a name or a path; "" in other tiers.
func (s *Policies) Runtime(ctx context.Context, rec *meta.Sandbox) (string, error) {
	if rec.Tier != string(policy.Container) {
		return "", nil
	}
	p, err := s.Of(ctx, rec)
	return cmp.Or(p.Runtime.Value, policy.DefaultRuntime), err
}

// MayForkMemory returns an error if the policy of a sandbox denies forks with memory.
func (s *Policies) MayForkMemory(ctx context.Context, rec *meta.Sandbox) error {
	p, err := s.Of(ctx, rec)
	if err != nil {
		return err
	}
	if len(rec.Ignored) > 0 {
		return fault.New(fault.Unsupported, "cannot fork sandbox %s with memory: its processes may use files in %s, "+
			"which is ignored, and a fork starts without them", rec.Name, rec.Ignored[0]).
			WithHint("fork its files alone: coppice fork %s", rec.Name)
	}
	if p.MemoryFork.Value == policy.MemoryDeny {
		return fault.New(fault.Denied, "cannot fork sandbox %s with memory: denied by %s", rec.Name, p.MemoryFork.At).
			WithHint("fork its files alone: coppice fork %s", rec.Name)
	}
	return nil
}

// Placed is Of with the known origins of its settings.
func (s *Policies) Placed(ctx context.Context, rec *meta.Sandbox) (policy.Policy, error) {
	p, err := s.Of(ctx, rec)
	if err != nil {
		return p, err
	}
	return s.place(ctx, rec, p), nil
}

// place returns p with the known origins of its settings. They are informational: if they are lost or damaged, place
// logs that and returns p without them.
func (s *Policies) place(ctx context.Context, rec *meta.Sandbox, p policy.Policy) policy.Policy {
	text := rec.OriginsText
	if text == "" && rec.Origins != "" {
		var err error
		if text, err = s.config.Records.Policy(ctx, rec.Origins); err != nil || policy.DigestOf([]byte(text)) != rec.Origins {
			s.config.Log.Warn("could not read the origins of a policy", "sandbox", rec.Name, "err", err)
			return p
		}
	}
	out, err := p.Placed(text)
	if err != nil {
		s.config.Log.Warn("could not read the origins of a policy", "sandbox", rec.Name, "err", err)
	}
	return out
}

// InForce returns the policy now in force in a sandbox, and all its phases.
func (s *Policies) InForce(ctx context.Context, rec *meta.Sandbox) (p policy.Policy, all []Phase, err error) {
	if all, err = s.Phases(ctx, rec); err != nil {
		return p, nil, err
	}
	if p, err = policy.ParseCanonical([]byte(all[0].Policy)); err != nil {
		return p, nil, fault.Wrap(err, "read the policy of sandbox %s", rec.Name)
	}
	p = s.place(ctx, rec, p)
	for _, t := range Timed(rec, s.config.Now()) {
		p = p.Unplaced(t.Rule, t.Deny, policy.Origin{
			Source: "coppice net allow, until " + t.Until.UTC().Format(time.RFC3339),
		})
	}
	return p, all, nil
}

// Timed returns the temporary rules of a record that are valid at now, the first to expire first.
func Timed(rec *meta.Sandbox, now time.Time) []meta.TimedRule {
	left := slices.DeleteFunc(slices.Clone(rec.Timed), func(t meta.TimedRule) bool { return !t.Until.After(now) })
	slices.SortStableFunc(left, func(a, b meta.TimedRule) int { return a.Until.Compare(b.Until) })
	return left
}

// Phases returns the policies of a sandbox from now on, at least one. The last one has no end.
func (s *Policies) Phases(ctx context.Context, rec *meta.Sandbox) ([]Phase, error) {
	text, err := s.Text(ctx, rec)
	if err != nil {
		return nil, err
	}
	last := Phase{Policy: text, Digest: policy.DigestOf([]byte(text))}
	left := Timed(rec, s.config.Now())
	if len(left) == 0 {
		return []Phase{last}, nil
	}
	base, err := policy.ParseCanonical([]byte(text))
	if err != nil {
		return nil, fault.Wrap(err, "read the policy of sandbox %s", rec.Name)
	}
	rules := make([]policy.Rule, len(left))
	for i, t := range left {
		if rules[i], err = policy.ParseRule(t.Rule, t.Deny); err != nil {
			return nil, fault.New(fault.Corrupt, "parse a temporary rule of sandbox %s", rec.Name).Because(err)
		}
	}
	var out []Phase
	for i, t := range left {
		if i > 0 && t.Until.Equal(left[i-1].Until) {
			continue
		}
		p, err := base.With(rules[i:]...)
		if err != nil {
			return nil, err
		}
		one := *rec
		if err := Pin(&one, p); err != nil {
			return nil, err
		}
		out = append(out, Phase{Policy: one.PolicyText, Digest: one.Policy, Until: t.Until})
	}
	return append(out, last), nil
}

// Confine returns the policies to start the box of a sandbox with: none in a tier without a gate. It refuses a damaged
// policy in every tier.
func (s *Policies) Confine(ctx context.Context, rec *meta.Sandbox) (phases []Phase, err error) {
	switch {
	case Gated(rec):
		phases, err = s.Phases(ctx, rec)
	case rec.Policy != "":
		_, err = s.Text(ctx, rec)
	}
	return phases, err
}

// Policy returns the current policy of a sandbox, for users.
func (s *Policies) Policy(ctx context.Context, name string) (res wire.PolicyResult, err error) {
	rec, err := s.config.Records.Sandbox(ctx, name)
	if err != nil {
		return res, err
	}
	p, all, err := s.InForce(ctx, &rec)
	if err != nil {
		return res, err
	}
	now := all[0]
	res = wire.PolicyResult{Digest: now.Digest, Text: now.Policy}
	for _, l := range policy.Explain(p) {
		res.Lines = append(res.Lines, wire.PolicyLine(l))
	}
	for _, t := range Timed(&rec, s.config.Now()) {
		res.Timed = append(res.Timed, wire.TimedRule(t))
	}
	if !now.Until.IsZero() {
		res.Until, res.Base = &now.Until, all[len(all)-1].Digest
	}
	return res, nil
}

// Configure sets the limits, Strong and the environment of a record from a policy; env are the variables of the
// request, kept as written.
func Configure(rec *meta.Sandbox, p policy.Policy, env []string) {
	rec.Limits, rec.Strong = limitsOf(p), p.Strong.Value
	rec.Env = environment(p, env)
}

// Check refuses a policy that cannot be enforced in a sandbox of rec's tier and root: paths that cannot be hidden,
// changed or mounted there, limits, and mounts of hidden host paths.
func (s *Policies) Check(p policy.Policy, rec *meta.Sandbox) error {
	if err := hidesNothing(p, rec.Tier); err != nil {
		return err
	}
	if _, err := s.allows(p, rec); err != nil {
		return err
	}
	return s.limitable(p.Limits, rec.Tier)
}

// NoInspection returns the error of rules, said at the given place, that can only be enforced by inspecting requests,
// for a sandbox of tier workspace: its programs trust the authorities of the host.
func NoInspection(at fmt.Stringer) error {
	return fault.New(fault.Unsupported, "tier workspace cannot enforce rules about requests, as %s says", at).
		WithHint("use rules about hosts, or --tier supervised")
}

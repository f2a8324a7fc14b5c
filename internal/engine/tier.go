//go:build linux

package engine

import (
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
)

// tiers are the tiers from which auto chooses. It takes gvisor, which has a cost for each system call, only if the
// policy says strong, and workspace only where choose says so.
var tiers = choice{what: "tier", group: "tiers", names: []string{tierSupervised, tierProcess}, nested: true,
	why:       "the strongest tier without a separate kernel",
	otherwise: "; for history without confinement: coppice create --tier workspace --driver copy --from DIR"}

// tierFor decides the tier of a sandbox with a policy, on a host with the report p, and says why. A tier that the
// policy names is refused if the host cannot provide it. Otherwise the tier is gvisor if the policy says strong and the
// host provides it, or else the strongest of tiers that provides what the policy requests.
func tierFor(pol policy.Policy, p wire.ProbeReport) (tier, why string, err error) {
	said, strong := pol.Tier, wantsKernel(pol)
	kernel, _ := tiers.item(p, tierGVisor)
	switch {
	case strong && kernel.OK:
		return tierGVisor, "the strongest tier, as required by strong at " + pol.Strong.At.String(), nil
	case strong && kernel.Unknown:
		return "", "", tiers.unknown(kernel)
	case said.At.BuiltIn() || pol.TierAtLeast && said.Value == policy.Process:
		of := fitting(pol)
		if tier, why, err = of.pick(p, "", of.best(p)); err == nil {
			why += aboveAuto(pol, p)
		}
		return tier, why, err
	}
	if tier, why, err = tiers.pick(p, string(said.Value), ""); err != nil {
		return "", "", err
	}
	if said.At != policies.Flag("--tier") {
		why += " by " + said.At.String()
	}
	if strong {
		why += "; not " + tierGVisor + ": " + kernel.Detail
	}
	return tier, why, nil
}

// aboveAuto returns, for the reason of a tier that auto chose, what is stronger, or why the host cannot provide it.
// Whether it can is unknown until tier gvisor was requested or "coppice system probe" was run.
func aboveAuto(pol policy.Policy, p wire.ProbeReport) string {
	kernel, tried := tiers.item(p, tierGVisor)
	switch {
	case pol.Network.Mode == policy.NetHost:
		return ""
	case tried && !kernel.OK && !kernel.Unknown:
		return "; not " + tierGVisor + ": " + kernel.Detail
	case kernel.OK:
		return "; stronger here: " + tierGVisor + " (--tier " + tierGVisor + ")"
	}
	return "; stronger where it works: " + tierGVisor + " (--tier " + tierGVisor + ")"
}

// fitting returns the tiers that provide what a policy requests.
func fitting(pol policy.Policy) choice {
	of := tiers
	programs := pol.Evidence.Programs
	switch {
	case pol.Network.Mode == policy.NetHost: // a gate is the only network of the stronger tiers
		of.names = []string{tierProcess}
		of.why = "the strongest tier that can use the host's network, as requested by " + pol.NetAt.String()
	case programs.Value == policy.ProgramsNone:
		of.names = []string{tierProcess}
		of.why += " that can leave programs unrecorded, as requested by " + programs.At.String()
	}
	return of
}

// wantsKernel reports whether a policy says strong and leaves the tier open: the owner did not choose one. A project's
// file, or the rules, may only require a tier that is at least as strong.
func wantsKernel(p policy.Policy) bool {
	return p.Strong.Value && (leftOpen(p) || p.TierAtLeast) && p.Network.Mode != policy.NetHost
}

// leftOpen reports whether a policy names no tier, apart from the one that its network rules need.
func leftOpen(p policy.Policy) bool {
	return p.Tier.At.BuiltIn() || p.Tier == policy.Said[policy.Tier]{Value: policy.Supervised, At: p.NetAt}
}

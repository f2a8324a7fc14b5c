package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/tty"
)

// modelKeys maps presets of policies, which name the API of a model, to presets of grants for its key.
func modelKeys() map[string]string {
	return map[string]string{"anthropic": "anthropic", "openai": "openai", "google-ai": "google"}
}

// agentGrants returns the presets of grants that a new sandbox of --agent gets if the host has their keys: those of the
// models that the agent may reach, unless the flags give the sandbox such a key or no gate.
func (r *runFlags) agentGrants() (names []string) {
	tier, net := policy.Tier(r.mk.req.Tier), policy.Net(r.mk.req.Net)
	if r.agent == "" || tier == policy.Process || net == policy.NetHost || net == policy.NetOff {
		return nil
	}
	given := slices.Clone(r.mk.grants)
	for i := range given {
		given[i], _, _ = strings.Cut(given[i], ",")
		given[i], _, _ = strings.Cut(given[i], "=")
	}
	for _, preset := range append([]string{r.mk.policy.agent}, r.mk.policy.presets...) {
		name := modelKeys()[preset]
		passed := slices.ContainsFunc(r.mk.req.Env, func(kv string) bool {
			k, _, _ := strings.Cut(kv, "=")
			return slices.Contains(grant.PresetEnv(name), k)
		})
		if name != "" && !passed && !slices.Contains(given, name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// grantKeys grants a new sandbox the keys of its agent's models that the host has: a secret with the name of the preset
// or, without one, a variable, whose value becomes that secret. Errors are warnings, since the agent can also sign in.
func (a *app) grantKeys(ctx context.Context, sandbox string, presets []string) {
	if len(presets) == 0 || a.getenv("COPPICE_HOST") != "" {
		return
	}
	home, err := a.home()
	if err != nil {
		return
	}
	_, err = os.Stat(filepath.Join(home, secretsDir))
	stores := err == nil
	for _, name := range presets {
		if a.hasGrant(ctx, sandbox, name) { // by its policy, which may limit it
			continue
		}
		variable := ""
		for _, v := range grant.PresetEnv(name) {
			if variable == "" && a.getenv(v) != "" {
				variable = v
			}
		}
		if variable == "" && !stores {
			continue
		}
		if err := a.grantKey(ctx, sandbox, name, variable); err != nil {
			we := wireError(err)
			a.warn([]string{fmt.Sprintf("the agent has no key of %s: %s; %s", name, we.Message, we.Hint)})
		}
	}
}

// hasGrant reports whether a sandbox has a live grant with the name or the preset, or it is not known.
func (a *app) hasGrant(ctx context.Context, sandbox, preset string) bool {
	c, err := a.client()
	if err != nil {
		return true
	}
	list, err := c.Grants(ctx, sandbox)
	return err != nil || slices.ContainsFunc(list, func(g wire.Grant) bool {
		return g.State == wire.GrantLive && (g.Name == preset || g.Preset == preset)
	})
}

// grantKey grants the secret of a preset. If it is not stored, it stores the value of variable; without a variable it
// does nothing then.
func (a *app) grantKey(ctx context.Context, sandbox, name, variable string) error {
	s, err := a.secrets(ctx)
	if err != nil {
		return err
	}
	list, err := s.List(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(list, func(s storedSecret) bool { return s.Name == name }) {
		if variable == "" {
			return nil
		}
		if _, err := s.Set(ctx, name, "env:"+variable, "", nil); err != nil {
			return err
		}
		a.note("stored %s as secret %s", variable, name)
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	res, err := c.Grant(ctx, sandbox, name, wire.GrantSpec{Secret: name, Preset: name})
	if err == nil {
		a.note("granted %s: the agent has a placeholder in %s", tty.Clean(res.Name), tty.Clean(strings.Join(res.Env, ", ")))
	}
	return err
}

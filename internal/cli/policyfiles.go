package cli

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/tty"
)

// wanting is what the flags say of a policy.
type wanting struct {
	files, allow, presets []string
	ask                   bool
	asks                  *pflag.Flag // of ask
	noFiles               bool        // leave out the files that nobody named
}

// flags are those of every command that gives sandboxes a policy.
func (p *wanting) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&p.files, "policy", nil, "take the policy of `FILE`, as you say it; may be given again")
	f.StringArrayVar(&p.allow, "allow", nil,
		"let it reach `RULE`, as in example.com or \"*.example.com:443\"; may be given again")
	f.StringSliceVar(&p.presets, "preset", nil, "let it reach the hosts of `PRESET`, as in pypi; may be given again")
	f.BoolVar(&p.ask, "ask", false, "have what no rule names wait for you: see coppice net approve")
	p.asks = f.Lookup("ask")
	must(cmd.RegisterFlagCompletionFunc("preset", presetNames))
}

// rules reports whether the flags say that the network is what rules allow.
func (p *wanting) rules() bool { return len(p.allow)+len(p.presets) > 0 || p.asks.Changed }

// automatic adds the flag of the commands that look for files by themselves.
func (p *wanting) automatic(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&p.noFiles, "no-policy-files", false, "leave out your own policy's file and ./"+policyFile)
}

func presetNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return policy.PresetNames(), cobra.ShellCompDirectiveNoFileComp
}

// said gives what the flags say, as files.
func (p *wanting) said() (out []wire.PolicyFile, err error) {
	for _, name := range p.files {
		f, err := policyText(name, wire.PolicyFlags)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	add := func(flag string, a policy.Access) error {
		a.Mode = policy.NetRules
		text, err := policy.Document{Network: &policy.Said[policy.Access]{Value: a}}.MarshalJSON()
		out = append(out, wire.PolicyFile{Level: wire.PolicyFlags, Name: flag, Text: string(text)})
		return err
	}
	if len(p.allow) > 0 {
		var a policy.Access
		for _, s := range p.allow {
			r, err := policy.ParseRule(s, false)
			if err != nil {
				return nil, fault.New(fault.Invalid, "--allow").Because(err).WithHint("%s", fault.HintOf(err))
			}
			a.Allow = append(a.Allow, r)
		}
		if err := add("--allow", a); err != nil {
			return nil, err
		}
	}
	if len(p.presets) > 0 {
		if _, err := policy.Template(p.presets); err != nil {
			return nil, err
		}
		var a policy.Access
		for _, name := range p.presets {
			a.Presets = append(a.Presets, policy.Said[string]{Value: name})
		}
		if err := add("--preset", a); err != nil {
			return nil, err
		}
	}
	if p.asks.Changed {
		if err := add("--ask", policy.Access{Ask: &policy.Said[bool]{Value: p.ask}}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// found gives the files that are there and that nobody named, and tells of each.
func (a *app) found() (out []wire.PolicyFile, err error) {
	mine := a.userPolicy()
	project, err := filepath.Abs(policyFile)
	if err != nil {
		return nil, fault.Wrap(err, "find ./%s", policyFile)
	}
	for _, one := range []struct{ name, level, whose string }{{mine, wire.PolicyUser, "yours"},
		{project, wire.PolicyProject, "the project's"}} {
		if one.name == "" || one.level == wire.PolicyProject && one.name == mine {
			continue
		}
		f, err := policyText(one.name, one.level)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		a.note("policy: %s (%s)", tty.Quote(one.name), one.whose)
		out = append(out, f)
	}
	return out, nil
}

// policyText reads one file, in which there is no mistake.
func policyText(name, level string) (wire.PolicyFile, error) {
	abs, text, err := readPolicyFile(name)
	if err == nil {
		_, err = policy.Parse(abs, text)
	}
	return wire.PolicyFile{Level: level, Name: abs, Text: string(text)}, err
}

// readPolicyFile gives the absolute name of a file, and what it holds.
func readPolicyFile(name string) (string, []byte, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", nil, fault.Wrap(err, "find %s", name)
	}
	f, err := os.Open(abs)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, fault.New(fault.NotFound, "there is no file %s", name).
			WithHint("make one: coppice policy init %s", name)
	}
	if err != nil {
		return "", nil, fault.Wrap(err, "open the policy")
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, policy.MaxSize+1))
	if err != nil {
		return "", nil, fault.Wrap(err, "read %s", name)
	}
	return abs, text, nil
}

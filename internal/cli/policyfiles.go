package cli

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/tty"
)

// wanting has the policy flags.
type wanting struct {
	files, allow, presets []string
	agent                 string        // the preset that --agent adds
	granted               []policy.Rule // the hosts of --grant
	ask                   bool
	asks                  *pflag.Flag // the flag of ask
	noFiles               bool        // ignore the default files
}

// flags adds the flags of every command that sets a policy.
func (p *wanting) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&p.files, "policy", nil, "add the policy in `FILE`, with the authority of a flag; repeatable")
	f.StringArrayVar(&p.allow, "allow", nil,
		"allow `RULE`, as in example.com or \"*.example.com:443\"; repeatable")
	f.StringSliceVar(&p.presets, "preset", nil, "allow the hosts of `PRESET`, as in pypi; repeatable")
	f.BoolVar(&p.ask, "ask", false, "ask before unlisted hosts; see coppice net approve")
	p.asks = f.Lookup("ask")
	must(cmd.RegisterFlagCompletionFunc("preset", presetNames))
}

// rules reports whether the flags set the network to rules.
func (p *wanting) rules() bool {
	return len(p.allow)+len(p.presets)+len(p.granted) > 0 || p.agent != "" || p.asks.Changed
}

// automatic adds the flag of the commands that read the default files.
func (p *wanting) automatic(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&p.noFiles, "no-policy-files", false, "ignore your own policy file and ./"+policyFile)
}

func presetNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return policy.PresetNames(), cobra.ShellCompDirectiveNoFileComp
}

// said returns the flags as policy files.
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
	if len(p.granted) > 0 {
		if err := add("--grant", policy.Access{Allow: p.granted}); err != nil {
			return nil, err
		}
	}
	if p.agent != "" {
		if err := add("--agent", policy.Access{Presets: []policy.Said[string]{{Value: p.agent}}}); err != nil {
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

// found returns the existing default policy files, and reports each.
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

// policyText reads and checks one file.
func policyText(name, level string) (wire.PolicyFile, error) {
	abs, text, err := readPolicyFile(name, level == wire.PolicyFlags)
	if err == nil {
		_, err = policy.Parse(abs, text)
	}
	return wire.PolicyFile{Level: level, Name: abs, Text: string(text)}, err
}

// readPolicyFile returns the absolute name and the content of a file. pipes allows a FIFO, as in --policy <(program).
// One in a project could keep commands waiting, so it is not opened in a way that blocks.
func readPolicyFile(name string, pipes bool) (string, []byte, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", nil, fault.Wrap(err, "find %s", name)
	}
	flags := os.O_RDONLY
	if !pipes {
		flags |= syscall.O_NONBLOCK
	}
	f, err := os.OpenFile(abs, flags, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, fault.New(fault.NotFound, "file %s not found", name).
			WithHint("create it: coppice policy init %s", name)
	}
	if err != nil {
		return "", nil, fault.Wrap(err, "open the policy")
	}
	defer f.Close()
	if st, err := f.Stat(); !pipes && (err != nil || st.Mode()&os.ModeNamedPipe != 0) {
		return "", nil, fault.New(fault.Invalid, "policy file %s is a FIFO", name).Because(err).
			WithHint("remove it, or ignore it: --no-policy-files")
	}
	text, err := io.ReadAll(io.LimitReader(f, policy.MaxSize+1))
	if err != nil {
		return "", nil, fault.Wrap(err, "read %s", name)
	}
	return abs, text, nil
}

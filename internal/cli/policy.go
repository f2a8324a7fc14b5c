package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/tty"
)

// policyFile is the default name of a policy file.
const policyFile = "coppice.yaml"

// notYet is part of the help of commands that read policies.
const notYet = `Creating a sandbox fails if its policy requires what is not enforced yet: tier
microvm, or hiding /, or paths in /dev, /proc or /sys.`

func (a *app) policy() *cobra.Command {
	return group(&cobra.Command{
		Use: "policy", Short: "Show, check and explain policies", GroupID: groupAccess,
		Long: `Show, check, explain and compare policies. The policy files are coppice.yaml in
a project, and ~/.config/coppice/coppice.yaml for all of your sandboxes;
"coppice create" and "coppice run" read both by default.

` + notYet,
		Example: `  coppice policy init --preset pypi
  coppice policy check
  coppice policy explain --host example.com
  coppice policy show box`,
	}, a.policyShow(), a.policyCheck(), a.policyExplain(), a.policyDiff(), a.policyInit(), a.policySchema())
}

// levelNames are the values of --as, in the order of the levels.
var levelNames = []string{"user", "project", "flags"}

// asFlag adds --as.
func asFlag(cmd *cobra.Command, as *string) {
	cmd.Flags().StringVar(as, "as", "project", "policy `LEVEL` of the file: user, project or flags")
	must(cmd.RegisterFlagCompletionFunc("as", fixed(levelNames...)))
}

// levelOf parses the value of --as.
func levelOf(as string) (policy.Level, error) {
	for i, name := range levelNames {
		if as == name {
			return policy.Level(i), nil
		}
	}
	return 0, &usageError{msg: fmt.Sprintf("unknown policy level %q", as),
		hint: "must be one of " + strings.Join(levelNames, ", ")}
}

// readPolicy reads one file. The document has its warnings.
func (a *app) readPolicy(name string) (policy.Document, error) {
	abs, text, err := readPolicyFile(name, true)
	if err != nil {
		return policy.Document{}, err
	}
	return policy.Parse(abs, text)
}

// policyJSON is the JSON output for one or more files.
type policyJSON struct {
	File     string          `json:"file,omitempty"`
	Valid    bool            `json:"valid"`
	Problems policy.Problems `json:"problems,omitzero"`
	Warnings policy.Problems `json:"warnings,omitzero"`
}

// mistakes prints the problems of a policy, one per line as compilers do, and returns the error with the exit code.
// It returns other errors unchanged.
func (a *app) mistakes(name string, err error) error {
	problems := policy.ProblemsOf(err)
	if problems == nil {
		return err
	}
	if a.json {
		return errors.Join(a.print(policyJSON{File: name, Problems: problems}, nil), &exitCode{code: exitError})
	}
	for _, p := range problems {
		fmt.Fprintln(a.stderr, tty.Clean(p.String()))
		if p.Hint != "" {
			fmt.Fprintf(a.stderr, "  hint: %s\n", tty.Clean(p.Hint))
		}
	}
	return &exitCode{code: exitError}
}

// remarks prints warnings: possible mistakes, and settings without effect.
func (a *app) remarks(lists ...policy.Problems) policy.Problems {
	all := policy.Problems{}
	for _, list := range lists {
		all = append(all, list...)
	}
	if !a.json {
		for _, p := range all {
			a.warn([]string{p.String()})
		}
	}
	return all
}

// theFile returns the file that args name, or the default.
func theFile(args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	return policyFile
}

func (a *app) policyShow() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show the policy in force for a sandbox",
		Long: `Show the policy in force in a sandbox, the origin of each part, and its digest,
as in "coppice status" and events. --json adds the text that the digest covers,
which is a valid policy file.`,
		Example:           "  coppice policy show box",
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			p, err := c.Policy(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(p, func(w io.Writer) error {
				var t tty.Table
				t.Row("WHAT", "BY", "VALUE")
				for _, l := range p.Lines {
					t.Row(tty.Clean(l.Key), tty.Clean(l.From), tty.Clean(l.Value))
				}
				for _, r := range p.Timed {
					what := "allows "
					if r.Deny {
						what = "denies "
					}
					t.Row("until "+r.Until.Local().Format(time.DateTime), "", what+tty.Clean(r.Rule))
				}
				t.Row("digest", "", tty.Clean(p.Digest))
				if p.Base != "" {
					t.Row("afterwards", "", tty.Clean(p.Base))
				}
				return t.Write(w)
			})
		},
	}
}

func (a *app) policyCheck() *cobra.Command {
	var as string
	cmd := &cobra.Command{
		Use: "check [FILE] [flags]", Short: "Validate a policy file",
		Long: `Validate a policy file (default: coppice.yaml). Print each error with its line
and column and how to fix it, and warn about values that may be unintended.

` + notYet,
		Example: `  coppice policy check
  coppice policy check ~/.config/coppice/coppice.yaml --as user`,
		Args: between(0, 1, "one file"),
		RunE: func(_ *cobra.Command, args []string) error {
			level, err := levelOf(as)
			if err != nil {
				return err
			}
			name := theFile(args)
			d, err := a.readPolicy(name)
			if err != nil {
				return a.mistakes(name, err)
			}
			p, requested, err := grant.MergePolicy(a.getenv("HOME"), policy.Layer{Level: level, Document: d})
			if err != nil {
				return a.mistakes(name, err)
			}
			remarks := a.remarks(d.Warnings, p.Notes, p.Unenforced())
			for _, r := range requested {
				a.note("%s: requests grant %s, secret %s, which its user must consent to", tty.Clean(r.At.String()), r.Name,
					r.Grant.Secret)
			}
			return a.print(policyJSON{File: name, Valid: true, Warnings: remarks}, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s is valid\n", tty.Clean(name))
				return err
			})
		},
	}
	asFlag(cmd, &as)
	return cmd
}

func (a *app) policyExplain() *cobra.Command {
	var (
		as, user, host string
		q              policy.HTTPRequest
	)
	cmd := &cobra.Command{
		Use: "explain [FILE] [flags]", Short: "Show the merged policy and the origin of each value",
		Long: `Show the policy merged from the built-in policy, your own file and FILE
(default: coppice.yaml, if it exists), with the origin of each value. Deny rules
always take precedence, and a project file can restrict your policy but not
extend it.

With --host, show the decision for that host by its name, and the deciding rule.
The name is not resolved; a non-public address is denied anyway, unless a rule
names the address.

` + notYet,
		Example: `  coppice policy explain
  coppice policy explain --host api.example.com --method POST --path /v1/items`,
		Args: between(0, 1, "one file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if host == "" && (q.Method != "" || q.Path != "") {
				return usagef("--method and --path require --host")
			}
			layers, warnings, err := a.policyLayers(args, as, user, cmd.Flags().Changed("user"))
			if err != nil {
				return a.mistakes("", err)
			}
			p, _, err := grant.MergePolicy(a.getenv("HOME"), layers...)
			if err != nil {
				return a.mistakes("", err)
			}
			remarks := a.remarks(warnings, p.Notes)
			if host != "" {
				return a.decide(p, host, q)
			}
			digest, err := p.Digest()
			if err != nil {
				return fault.Wrap(err, "name the policy")
			}
			lines := explained(p)
			return a.print(map[string]any{"digest": digest, "lines": lines, "warnings": remarks},
				func(w io.Writer) error {
					var t tty.Table
					t.Row("WHAT", "BY", "VALUE")
					for _, l := range lines {
						t.Row(l.Key, tty.Clean(l.From), tty.Clean(l.Value))
					}
					t.Row("digest", "", digest)
					return t.Write(w)
				})
		},
	}
	asFlag(cmd, &as)
	f := cmd.Flags()
	f.StringVar(&user, "user", "",
		"your own policy `FILE`; \"\" for none (default: ~/.config/coppice/coppice.yaml, if it exists)")
	f.StringVar(&host, "host", "", "show the decision for `HOST[:PORT]`; for UDP, prefix it with udp://")
	f.StringVar(&q.Method, "method", "", "HTTP method `M` of the request to HOST")
	f.StringVar(&q.Path, "path", "", "HTTP path and query `P` of the request to HOST")
	return cmd
}

// explained describes a policy that has no sandbox yet: a tier that it does not name is chosen when one is created.
func explained(p policy.Policy) []policy.Line {
	lines := policy.Explain(p)
	for i, l := range lines {
		if l.Key == "tier" && p.Tier.At.BuiltIn() {
			lines[i].Value = "auto, at least " + l.Value
		}
	}
	return lines
}

// policyLayers reads the user's own file and the file of args. A file that the user did not name may be absent.
func (a *app) policyLayers(
	args []string, as, user string, asked bool,
) (layers []policy.Layer, warnings policy.Problems, err error) {
	level, err := levelOf(as)
	if err != nil {
		return nil, nil, err
	}
	if !asked {
		user = a.userPolicy()
	}
	for _, one := range []struct {
		name   string
		level  policy.Level
		needed bool
	}{{user, policy.User, asked}, {theFile(args), level, len(args) > 0}} {
		if one.name == "" {
			continue
		}
		d, err := a.readPolicy(one.name)
		switch {
		case fault.Is(err, fault.NotFound) && !one.needed:
			continue
		case err != nil:
			return nil, nil, err
		}
		warnings = append(warnings, d.Warnings...)
		layers = append(layers, policy.Layer{Level: one.level, Document: d})
	}
	return layers, warnings, nil
}

// userPolicy returns the path of the user's own file; "" if there is no home.
func (a *app) userPolicy() string {
	dir := a.getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		home := a.getenv("HOME")
		if !filepath.IsAbs(home) {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "coppice", policyFile)
}

// decisionJSON is the JSON output for a decision.
type decisionJSON struct {
	Request    string         `json:"request"`
	Verdict    policy.Verdict `json:"verdict"`
	Rule       *policy.Rule   `json:"rule,omitempty"`
	From       string         `json:"from,omitempty"`
	Reason     string         `json:"reason"`
	Hint       string         `json:"hint,omitempty"`
	MaxRequest int64          `json:"max_request,omitempty"`
	MaxBytes   int64          `json:"max_bytes,omitempty"`
	Rate       string         `json:"rate,omitempty"`
}

// decide prints p's decision about a host, or about a request to it.
func (a *app) decide(p policy.Policy, host string, q policy.HTTPRequest) error {
	req, err := policy.ParseRequest(host)
	if err != nil {
		return err
	}
	if q.Method != "" || q.Path != "" {
		if q.Method == "" {
			q.Method = "GET"
		}
		if q.Path, q.Query, _ = strings.Cut(q.Path, "?"); q.Path == "" {
			q.Path = "/"
		}
		req.HTTP = &q
	}
	d := p.Network.Decide(req)
	out := decisionJSON{Request: req.String(), Verdict: d.Verdict, Rule: d.Rule, Reason: d.Reason, Hint: d.Hint,
		MaxRequest: d.MaxRequest, MaxBytes: d.MaxBytes, Rate: d.Rate.String()}
	if d.Rule != nil {
		out.From = d.Rule.At.String()
	}
	return a.print(out, func(w io.Writer) error {
		var t tty.Table
		t.Row(string(d.Verdict), tty.Clean(out.Request)+": "+tty.Clean(d.Reason))
		if d.Rule != nil {
			t.Row("rule", tty.Clean(d.Rule.String()))
			t.Row("by", tty.Clean(out.From))
		}
		for _, limit := range []struct{ name, value string }{{"max_request", sizeOrNone(d.MaxRequest)},
			{"max_bytes", sizeOrNone(d.MaxBytes)}, {"rate", out.Rate}} {
			if limit.value != "" {
				t.Row(limit.name, limit.value)
			}
		}
		if d.Hint != "" {
			t.Row("hint", tty.Clean(d.Hint))
		}
		return t.Write(w)
	})
}

func sizeOrNone(n int64) string {
	if n == 0 {
		return ""
	}
	return policy.FormatBytes(n)
}

func (a *app) policyDiff() *cobra.Command {
	var as string
	cmd := &cobra.Command{
		Use: "diff A B [flags]", Short: "Compare what two policies allow",
		Long: `Show what the policy in file B allows more or less than that in file A, one line
per difference. Both are merged with the built-in policy, without your own file.
A replaced rule is shown as removed (-) and added (+).

` + notYet,
		Example: "  coppice policy diff old.yaml coppice.yaml",
		Args:    between(2, 2, "two files"),
		RunE: func(_ *cobra.Command, args []string) error {
			level, err := levelOf(as)
			if err != nil {
				return err
			}
			var both [2]policy.Policy
			for i, name := range args {
				d, err := a.readPolicy(name)
				if err != nil {
					return a.mistakes(name, err)
				}
				one := policy.Layer{Level: level, Document: d}
				if both[i], _, err = grant.MergePolicy(a.getenv("HOME"), one); err != nil {
					return a.mistakes(name, err)
				}
			}
			changes := policy.Diff(both[0], both[1])
			if changes == nil {
				changes = []policy.Change{}
			}
			return a.print(map[string]any{"changes": changes}, func(w io.Writer) error {
				var t tty.Table
				for _, c := range changes {
					mark := "+ "
					if c.Gone {
						mark = "- "
					} else if strings.HasPrefix(c.Value, "was ") {
						mark = "  "
					}
					t.Row(string(c.Way), mark+c.Key, tty.Clean(c.Value))
				}
				return t.Write(w)
			})
		},
	}
	asFlag(cmd, &as)
	return cmd
}

func (a *app) policyInit() *cobra.Command {
	var presets []string
	cmd := &cobra.Command{
		Use: "init [FILE] [flags]", Short: "Write an initial policy file",
		Long: `Write a commented policy file (default: coppice.yaml), and print its name. An
existing file is not overwritten.

` + notYet,
		Example: "  coppice policy init --preset pypi --preset github",
		Args:    between(0, 1, "one file"),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := policy.Template(presets)
			if err != nil {
				return err
			}
			name := theFile(args)
			if err := writeNew(name, text); err != nil {
				return err
			}
			return a.print(map[string]any{"file": name}, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, tty.Clean(name))
				return err
			})
		},
	}
	cmd.Flags().StringSliceVar(&presets, "preset", nil, "allow the hosts of `PRESET`; repeatable")
	must(cmd.RegisterFlagCompletionFunc("preset", presetNames))
	return cmd
}

// writeNew writes a new file, and fails if it exists.
func writeNew(name string, text []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fault.New(fault.Exists, "%s already exists", name).WithHint("check it: coppice policy check %s", name)
	}
	if err != nil {
		return fault.Wrap(err, "create the policy file")
	}
	if _, err = f.Write(text); err != nil {
		return fault.Wrap(errors.Join(err, f.Close(), os.Remove(name)), "write %s", name)
	}
	return fault.Wrap(f.Close(), "write %s", name)
}

func (a *app) policySchema() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of policy files",
		Long:    "Print the JSON Schema (draft 2020-12) of policy files, for editors.",
		Example: "  coppice policy schema > coppice.schema.json",
		Args:    between(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			text, err := policy.Schema()
			if err != nil {
				return fault.Wrap(err, "make the schema")
			}
			_, err = a.out.Write(text)
			return err
		},
	}
}

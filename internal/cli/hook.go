package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/hook"
	"github.com/coppice-dev/coppice/internal/tty"
)

// hookInfo is what --json tells of a harness.
type hookInfo struct {
	Name    string `json:"name"`
	Title   string `json:"title"`
	Project string `json:"project"` // its file below a project
	User    string `json:"user"`    // and below the home
	Note    string `json:"note,omitempty"`
	Config  string `json:"config,omitempty"`    // what the file is to hold
	File    string `json:"installed,omitempty"` // where it was put
	Changed bool   `json:"changed,omitempty"`   // and was not there already
}

func (a *app) hook() *cobra.Command {
	var (
		list, install, user bool
		project             string
	)
	cmd := &cobra.Command{
		Use: "hook HARNESS [flags]", Short: "Make an agent's harness mark its tool calls", GroupID: groupHistory,
		Long: `Print the configuration by which a harness marks each tool call of its agent, so
that the log of a sandbox reads like the agent's own steps. With --install, put it
into the harness's file; all that the file holds stays, and one that is not
understood is refused.

The hooks do what "coppice snapshot mark" does, from inside: they write one line to
/run/coppice.sock, as {"op":"mark","phase":"begin","label":"Bash: make"}, and read
one. They need node or python3. Where there is no such socket, as outside of a
sandbox, or no answer within two seconds, the tool call goes on all the same.`,
		Example: `  coppice hook --list
  coppice hook claude-code --install --project ~/src/app
  coppice hook claude-code | coppice exec box -i -- sh -c 'mkdir -p ~/.claude && cat > ~/.claude/settings.json'`,
		Args: between(0, 1, "one harness"),
		ValidArgsFunction: func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
			for _, h := range hook.Harnesses() {
				names = append(names, cobra.CompletionWithDesc(h.Name, h.Title))
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case list && (len(args) > 0 || install):
				return usagef("--list goes alone")
			case list:
				return a.hookList()
			case len(args) == 0:
				return &usageError{msg: "hook needs a harness", hint: "see which there are: coppice hook --list"}
			case !install && (user || project != ""):
				return usagef("--project and --user say where to --install")
			case user && project != "":
				return usagef("--project and --user say different things")
			}
			h, err := hook.Find(args[0])
			if err != nil {
				return err
			}
			if install {
				return a.hookInstall(h, project, user)
			}
			text, err := h.Config()
			if err != nil {
				return err
			}
			info := about(h)
			info.Config = string(text)
			return a.print(info, func(w io.Writer) error {
				_, err := io.WriteString(w, info.Config)
				return err
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&list, "list", false, "list the harnesses that are known, and their files")
	f.BoolVar(&install, "install", false, "put it into the harness's file, and print the file's name")
	f.StringVar(&project, "project", "", "for the project in `DIR` (default: the present directory)")
	f.BoolVar(&user, "user", false, "for all projects of this user")
	return cmd
}

func about(h hook.Harness) hookInfo {
	return hookInfo{Name: h.Name, Title: h.Title, Project: h.Project, User: "~/" + h.User, Note: h.Note}
}

func (a *app) hookList() error {
	var all []hookInfo
	for _, h := range hook.Harnesses() {
		all = append(all, about(h))
	}
	return a.print(map[string]any{"harnesses": all}, func(w io.Writer) error {
		var t tty.Table
		for _, h := range all {
			t.Row(h.Name, h.Title, h.Project, h.User, h.Note)
		}
		return t.Write(w)
	})
}

func (a *app) hookInstall(h hook.Harness, dir string, user bool) error {
	switch {
	case user:
		if dir = a.getenv("HOME"); dir == "" {
			var err error
			if dir, err = os.UserHomeDir(); err != nil {
				return fault.New(fault.Invalid, "the home of this user is not known").Because(err).WithHint("set HOME")
			}
		}
	case dir == "":
		dir = "."
	}
	file, changed, err := h.Install(dir, user)
	if err != nil {
		return err
	}
	info := about(h)
	info.File, info.Changed = file, changed
	return a.print(info, func(w io.Writer) error {
		if !changed {
			a.note("it was there already")
		}
		if h.Note != "" {
			a.note("%s", h.Note)
		}
		_, err := fmt.Fprintln(w, tty.Clean(file))
		return err
	})
}

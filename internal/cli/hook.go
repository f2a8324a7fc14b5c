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

// hookInfo is the JSON output for a harness.
type hookInfo struct {
	Name    string `json:"name"`
	Title   string `json:"title"`
	Project string `json:"project"` // path of its file in a project
	User    string `json:"user"`    // path of its file in the user's home
	Note    string `json:"note,omitempty"`
	Config  string `json:"config,omitempty"`    // required content of the file
	File    string `json:"installed,omitempty"` // path of the installed file
	Changed bool   `json:"changed,omitempty"`   // whether the file was changed
}

func (a *app) hook() *cobra.Command {
	var (
		list, install, user bool
		project             string
	)
	cmd := &cobra.Command{
		Use: "hook HARNESS [flags]", Short: "Configure an agent's harness to mark its tool calls", GroupID: groupOthers,
		Long: `Print the configuration with which a harness marks each tool call of its agent,
so that the history of a sandbox shows the agent's steps. With --install, add it
to the harness's file. Existing settings are kept; a file that cannot be parsed
is refused.

The hooks do what "coppice snapshot mark" does, from inside: they write a line
such as {"op":"mark","phase":"begin","label":"Bash: make"} to /run/coppice.sock
and read one line. They require node or python3. Without that socket, as outside
a sandbox, or without an answer within two seconds, the tool call continues
unchanged.`,
		Example: `  coppice hook --list
  coppice hook claude-code --install --project ~/src/app
  coppice hook claude-code | coppice exec box -i -- sh -c 'cat > settings.json'`,
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
				return usagef("--list takes no other flags or arguments")
			case list:
				return a.hookList()
			case len(args) == 0:
				return &usageError{msg: "hook requires a harness", hint: "list them: coppice hook --list"}
			case !install && (user || project != ""):
				return usagef("--project and --user require --install")
			case user && project != "":
				return usagef("--project and --user are mutually exclusive")
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
	f.BoolVar(&list, "list", false, "list the supported harnesses and their files")
	f.BoolVar(&install, "install", false, "write the hook to the harness's file and print the file's name")
	f.StringVar(&project, "project", "", "configure the project in `DIR` (default: the current directory)")
	f.BoolVar(&user, "user", false, "configure all projects of the current user")
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
				return fault.New(fault.Invalid, "unknown home directory of this user").Because(err).WithHint("set HOME")
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
			a.note("already installed")
		}
		if h.Note != "" {
			a.note("%s", h.Note)
		}
		_, err := fmt.Fprintln(w, tty.Clean(file))
		return err
	})
}

package cli

import "github.com/spf13/cobra"

func (a *app) process() *cobra.Command {
	return group(&cobra.Command{
		Use: "process", Short: "List, signal, pause and inspect processes", GroupID: groupRun,
		Long: `List, signal, pause and resume the processes of a sandbox, and inspect the
record of a command.`,
		Example: `  coppice process ls box
  coppice process kill box 12
  coppice process pause box`,
	}, a.processLs(), a.processKill(), a.processPause(), a.processResume(), a.processInspect())
}

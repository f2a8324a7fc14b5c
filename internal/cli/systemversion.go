package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker; go build and go install without flags leave it empty.
var version string

// buildVersion returns the version of this build.
func buildVersion() string {
	if version != "" {
		return version
	}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return b.Main.Version
	}
	return "devel"
}

func (a *app) systemVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show version information",
		Example: "  coppice system version --json",
		RunE: func(*cobra.Command, []string) error {
			v := map[string]string{"version": a.version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH}
			return a.print(v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "coppice %s\n", a.version)
				return err
			})
		},
	}
}

//go:build linux

package program

import (
	"debug/buildinfo"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// sameVersion refuses a program that was built from another version than ours. A version that
// is not known is not compared.
func sameVersion(f *os.File, ours string) error {
	info, err := buildinfo.Read(f)
	if err != nil {
		return fault.New(fault.Unsupported, "%s is not a program of Coppice", f.Name()).Because(err).WithHint("%s", install)
	}
	if theirs := versionOf(info); ours != "" && theirs != "" && ours != theirs {
		return fault.New(fault.Unsupported, "%s is of version %s, and this program of %s", f.Name(), theirs, ours).WithHint("%s", install)
	}
	return nil
}

// versionOf returns the version that the go command has recorded in a program: that of the
// module, which names the commit in a checkout. It is "" where nothing is recorded, as in
// programs of tests; there, the protocols' own versions (plan.Version) tell programs apart.
func versionOf(info *debug.BuildInfo) string {
	if info == nil || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return ""
	}
	return strings.TrimSuffix(info.Main.Version, "+dirty") // changed files have no version
}

// ModuleVersion returns the version of a module that a Go program was built with, or "" if
// it has none of it.
func ModuleVersion(program io.ReaderAt, module string) (string, error) {
	info, err := buildinfo.Read(program)
	if err != nil {
		return "", fault.Wrap(err, "read what a program was built from")
	}
	for _, m := range info.Deps {
		if m.Path == module {
			return m.Version, nil
		}
	}
	return "", nil
}

//go:build linux

package program

import (
	"cmp"
	"debug/buildinfo"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// isProgram refuses a file that is not the helper program name.
func isProgram(f *os.File, name Name) error {
	info, err := buildinfo.Read(f)
	if err != nil || info.Path != "github.com/coppice-dev/coppice/cmd/"+string(name) {
		return fault.New(fault.Unsupported, "%s is not %s of Coppice", f.Name(), name).Because(err).WithHint("%s", install)
	}
	return nil
}

// sameVersion refuses a program that was built from another version than own. If own is "", it is unknown, and the
// version is not compared.
func sameVersion(f *os.File, own string) error {
	info, err := buildinfo.Read(f)
	if err != nil {
		return fault.Wrap(err, "read the build information of %s", f.Name())
	}
	if theirs := versionOf(info); own != "" && theirs != own {
		return fault.New(fault.Unsupported, "%s has version %s, but this program has %s", f.Name(),
			cmp.Or(theirs, "unknown"), own).WithHint("%s", install)
	}
	return nil
}

// versionOf returns the version that the go command recorded in a program: that of the module, which names the commit
// in a checkout. It is "" if none is recorded, as in test programs; there, the versions of the protocols (plan.Version)
// detect a mismatch.
func versionOf(info *debug.BuildInfo) string {
	if info == nil || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return ""
	}
	return strings.TrimSuffix(info.Main.Version, "+dirty") // uncommitted changes do not change the version
}

// ModuleVersion returns the version of a module that a Go program was built with, or "" if the program does not contain
// the module.
func ModuleVersion(program io.ReaderAt, module string) (string, error) {
	info, err := buildinfo.Read(program)
	if err != nil {
		return "", fault.Wrap(err, "read the build information of a program")
	}
	for _, m := range info.Deps {
		if m.Path == module {
			return m.Version, nil
		}
	}
	return "", nil
}

//go:build linux && (amd64 || arm64)

package gvisor

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/plan"
)

var update = flag.Bool("update", false, "write testdata/protocol.txt anew, after reading plan.Protocol")

// TestContainerSpec_IsUnchanged pins the description of a sandbox for gVisor, which resumes an image only under the
// same description, see plan.Protocol.
func TestContainerSpec_IsUnchanged(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	conf, err := settings()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "protocol %d\nfiles of an image %q\ncontainer %s\nspecification %d.%d.%d%s\nsettings %q\n",
		plan.Protocol, initlink.ImageFiles, containerID,
		specs.VersionMajor, specs.VersionMinor, specs.VersionPatch, specs.VersionDev,
		slices.Sorted(slices.Values(conf.ToFlags())))
	for _, g := range []plan.Guest{{}, {Tmp: true, Memory: 1 << 30, Shared: 1, Client: true}} {
		s, err := specOf(g)
		if err != nil {
			t.Fatal(err)
		}
		s.Version = ""
		s.Process.User, s.Linux.UIDMappings, s.Linux.GIDMappings = specs.User{}, nil, nil // those of this process
		text, err := json.MarshalIndent(s, "", "\t")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s\n", text)
	}
	golden := filepath.Join("testdata", "protocol.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || string(want) != b.String() {
		t.Errorf("the description of a sandbox for gVisor differs from %s (%v). Memory images were taken with the old "+
			"one: raise plan.Protocol, and then run this test with -update. It is now:\n%s", golden, err, b.String())
	}
}

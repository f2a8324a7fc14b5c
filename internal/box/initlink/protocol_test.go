//go:build linux && (amd64 || arm64)

package initlink

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/plan"
)

var update = flag.Bool("update", false, "write testdata/protocol.txt, after reading plan.Protocol")

// said lists the messages between a keeper or conductor of one build and an init of another: all messages of tier
// gvisor, except those of the start, in which both are of one build, and those that the conductor answers itself.
var said = []struct {
	name string
	kind Kind
	to   string
	what any
}{
	{"Spawn", MsgSpawn, "init", Spawn{}}, {"Spawned", MsgSpawned, "keeper", Spawned{}},
	{"Exited", MsgExited, "keeper", Exited{}},
	{"Kill", MsgKill, "init", Kill{}}, {"Resize", MsgResize, "init", Resize{}},
	{"Freeze", MsgFreeze, "init", nil}, {"Frozen", MsgFrozen, "keeper", Frozen{}}, {"Thaw", MsgThaw, "init", nil},
	{"Thawed", MsgThawed, "keeper", nil},
	{"Map", MsgMap, "init", nil}, {"Mapped", MsgMapped, "keeper", Mapped{}}, {"Count", MsgCount, "init", nil},
	{"Counted", MsgCounted, "keeper", Counted{}},
	{"Clock", MsgClock, "init", nil}, {"Clocked", MsgClocked, "keeper", Clocked{}}, {"Look", MsgLook, "init", Look{}},
	{"Seen", MsgSeen, "keeper", Seen{}},
	{"Self", MsgSelf, "keeper", Self{}}, {"Adopt", MsgAdopt, "keeper", Adopt{}},
	{"Rekey", MsgRekey, "init", Rekey{}}, {"Rekeyed", MsgRekeyed, "keeper", Rekeyed{}},
	{"Unknown", MsgUnknown, "keeper", Unknown{}},
}

// TestInitProtocol_IsUnchanged pins the messages that an init from another build understands, see plan.Protocol.
func TestInitProtocol_IsUnchanged(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	fmt.Fprintf(&b, "protocol %d\nkinds of Kill: %q\nkinds of Look: %q\ndescriptors: %q %q\n", plan.Protocol,
		[]string{KillGroup, KillTree, KillAll, KillForeground}, []string{LookProcesses, LookPorts, LookDial, LookSignal},
		Pipes, Terminal)
	for _, m := range said {
		fmt.Fprintf(&b, "\n%s %q to %s\n", m.name, byte(m.kind), m.to)
		if m.what != nil {
			fieldsOf(&b, reflect.TypeOf(m.what), 1)
		}
	}
	golden := filepath.Join("testdata", "protocol.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || string(want) != b.String() {
		t.Errorf("the messages to and from init differ from %s (%v). Memory images have inits of older "+
			"builds: read plan.Protocol, raise it unless what has changed is one of the exceptions there, and then run this "+
			"test with -update. It is now:\n%s", golden, err, b.String())
	}
}

// fieldsOf writes the fields of a type as encoding/json names them.
func fieldsOf(b *strings.Builder, t reflect.Type, depth int) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || !strings.HasPrefix(t.PkgPath(), "github.com/coppice-dev/") {
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		if f.Anonymous && tag == "" {
			fieldsOf(b, f.Type, depth)
			continue
		}
		fmt.Fprintf(b, "%s%s: %s\n", strings.Repeat("  ", depth), tag, f.Type)
		fieldsOf(b, f.Type, depth+1)
	}
}

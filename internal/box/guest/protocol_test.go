//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

var update = flag.Bool("update", false, "write testdata/protocol.txt anew, after reading plan.Protocol")

// said are the messages between a keeper or conductor of one build and an init of another: all
// of tier gvisor but those of the start, which is of one build, and those that the conductor
// answers.
var said = []struct {
	name string
	kind Kind
	to   string
	what any
}{
	{"Spawn", MsgSpawn, "init", Spawn{}}, {"Spawned", MsgSpawned, "keeper", Spawned{}}, {"Exited", MsgExited, "keeper", Exited{}},
	{"Kill", MsgKill, "init", Kill{}}, {"Resize", MsgResize, "init", Resize{}},
	{"Freeze", MsgFreeze, "init", nil}, {"Frozen", MsgFrozen, "keeper", Frozen{}}, {"Thaw", MsgThaw, "init", nil}, {"Thawed", MsgThawed, "keeper", nil},
	{"Map", MsgMap, "init", nil}, {"Mapped", MsgMapped, "keeper", Mapped{}}, {"Count", MsgCount, "init", nil}, {"Counted", MsgCounted, "keeper", Counted{}},
	{"Clock", MsgClock, "init", nil}, {"Clocked", MsgClocked, "keeper", Clocked{}}, {"Look", MsgLook, "init", Look{}}, {"Seen", MsgSeen, "keeper", Seen{}},
	{"Self", MsgSelf, "keeper", nil}, {"Adopt", MsgAdopt, "keeper", Adopt{}},
	{"Reseal", MsgReseal, "init", Reseal{}}, {"Resealed", MsgResealed, "keeper", Resealed{}}, {"Unknown", MsgUnknown, "keeper", Unknown{}},
}

// TestWhatIsSaidToInit holds what an init of another build understands: see plan.Protocol.
func TestWhatIsSaidToInit(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	fmt.Fprintf(&b, "protocol %d\nkinds of Kill: %q\nkinds of Look: %q\ndescriptors: %q %q\n", plan.Protocol,
		[]string{KillGroup, KillTree, KillAll, KillForeground}, []string{LookProcesses, LookPorts, LookDial, LookSignal}, Pipes, Terminal)
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
		t.Errorf("what is said to init, or what it says, is not %s any more (%v). Memory images have inits of older builds: read plan.Protocol, raise it unless what has changed is one of the exceptions there, and then run this test with -update. It is now:\n%s", golden, err, b.String())
	}
}

// fieldsOf writes the fields of a type as JSON has them.
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

// asked gives the answer of an init to a message.
func asked(t *testing.T, d *daemon, keeper *Link, k Kind, payload string) Message {
	t.Helper()
	if err := d.handle(Message{Kind: k, Payload: []byte(payload)}); err != nil {
		t.Fatalf("message %q ends init: %v", byte(k), err)
	}
	m, err := keeper.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// An init of an older build refuses what it does not know, goes on, and says so.
func TestAnOlderInitRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	keeper, d := NewLink(pair[0]), &daemon{link: NewLink(pair[1])}
	defer keeper.Close()
	defer d.link.Close()
	var u Unknown
	m := asked(t, d, keeper, '~', `{"what":"not known"}`)
	if err := m.Decode(&u); m.Kind != MsgUnknown || err != nil || u.Kind != '~' || u.Err == nil || u.Err.Kind != string(fault.Version) || u.Err.Hint == "" {
		t.Errorf("a message: %q %+v %v", byte(m.Kind), u, err)
	}
	var s Spawned
	m = asked(t, d, keeper, MsgSpawn, `{"cmd":["true"],"confined":true}`)
	if err := m.Decode(&s); m.Kind != MsgSpawned || err != nil || s.PID != 0 || s.Err == nil || s.Err.Kind != string(fault.Version) {
		t.Errorf("a command with a field: %q %+v %v", byte(m.Kind), s, err)
	}
	var r Resealed
	m = asked(t, d, keeper, MsgReseal, `{"env":[],"seed":"AAAA","keys":true}`)
	if err := m.Decode(&r); m.Kind != MsgResealed || err != nil || len(r.Steps) != 0 || r.Err == nil || r.Err.Kind != string(fault.Version) {
		t.Errorf("a reseal with a field: %q %+v %v", byte(m.Kind), r, err)
	}
	for _, q := range []string{`{"id":7,"what":"ports","deep":true}`, `{"id":7,"what":"memory"}`} {
		var seen Seen
		m = asked(t, d, keeper, MsgLook, q)
		if err := m.Decode(&seen); m.Kind != MsgSeen || err != nil || seen.ID != 7 || seen.Err == nil || seen.Err.Kind != string(fault.Version) {
			t.Errorf("a look %s: %q %+v %v", q, byte(m.Kind), seen, err)
		}
	}
	if err := d.kill(Kill{PID: 1, Signal: 0, Whom: "most"}); !fault.Is(err, fault.Version) {
		t.Errorf("a signal to whom it does not know: %v", err)
	}
	// To what has no answer there is none, and nothing is done.
	if err := errors.Join(d.handle(Message{Kind: MsgKill, Payload: []byte(`{"pid":1,"signal":0,"whom":"all","but":[1]}`)}),
		d.handle(Message{Kind: MsgKill, Payload: []byte(`{"pid":1,"signal":0,"whom":"most"}`)})); err != nil {
		t.Error(err)
	}
	if m = asked(t, d, keeper, '~', ""); m.Kind != MsgUnknown {
		t.Errorf("an answer %q to a signal", byte(m.Kind))
	}
}

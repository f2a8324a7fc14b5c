//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
)

// asked passes a message to init and returns the answer.
func asked(t *testing.T, d *daemon, keeper *initlink.Link, k initlink.Kind, payload string) initlink.Message {
	t.Helper()
	if err := d.handle(initlink.Message{Kind: k, Payload: []byte(payload)}); err != nil {
		t.Fatalf("message %q ends init: %v", byte(k), err)
	}
	m, err := keeper.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestInit_RefusesUnknownMessage checks that an init from an older build refuses a message that it does not know,
// reports that, and continues.
func TestInit_RefusesUnknownMessage(t *testing.T) {
	t.Parallel()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	keeper, d := initlink.NewLink(pair[0]), &daemon{link: initlink.NewLink(pair[1])}
	defer keeper.Close()
	defer d.link.Close()
	var u initlink.Unknown
	m := asked(t, d, keeper, '~', `{"what":"not known"}`)
	if err := m.Decode(&u); m.Kind != initlink.MsgUnknown || err != nil || u.Kind != '~' || u.Err == nil ||
		u.Err.Kind != string(fault.Version) || u.Err.Hint == "" {
		t.Errorf("unknown message: %q %+v %v", byte(m.Kind), u, err)
	}
	var s initlink.Spawned
	m = asked(t, d, keeper, initlink.MsgSpawn, `{"cmd":["true"],"confined":true}`)
	if err := m.Decode(&s); m.Kind != initlink.MsgSpawned || err != nil || s.PID != 0 || s.Err == nil ||
		s.Err.Kind != string(fault.Version) {
		t.Errorf("command with an unknown field: %q %+v %v", byte(m.Kind), s, err)
	}
	var r initlink.Rekeyed
	m = asked(t, d, keeper, initlink.MsgRekey, `{"env":[],"seed":"AAAA","keys":true}`)
	if err := m.Decode(&r); m.Kind != initlink.MsgRekeyed || err != nil || len(r.Steps) != 0 || r.Err == nil ||
		r.Err.Kind != string(fault.Version) {
		t.Errorf("a Rekey with a field: %q %+v %v", byte(m.Kind), r, err)
	}
	for _, q := range []string{`{"id":7,"what":"ports","deep":true}`, `{"id":7,"what":"memory"}`} {
		var seen initlink.Seen
		m = asked(t, d, keeper, initlink.MsgLook, q)
		if err := m.Decode(&seen); m.Kind != initlink.MsgSeen || err != nil || seen.ID != 7 || seen.Err == nil ||
			seen.Err.Kind != string(fault.Version) {
			t.Errorf("look %s: %q %+v %v", q, byte(m.Kind), seen, err)
		}
	}
	if err := d.kill(initlink.Kill{PID: 1, Signal: 0, Whom: "most"}); !fault.Is(err, fault.Version) {
		t.Errorf("signal to an unknown set of processes: %v", err)
	}
	// A message without an answer is ignored if it is not understood.
	if err := errors.Join(
		d.handle(initlink.Message{Kind: initlink.MsgKill, Payload: []byte(`{"pid":1,"signal":0,"whom":"all","but":[1]}`)}),
		d.handle(initlink.Message{Kind: initlink.MsgKill,
			Payload: []byte(`{"pid":1,"signal":0,"whom":"most"}`)})); err != nil {
		t.Error(err)
	}
	if m = asked(t, d, keeper, '~', ""); m.Kind != initlink.MsgUnknown {
		t.Errorf("got answer %q to a signal", byte(m.Kind))
	}
}

package broker

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/secret/client"
	"github.com/coppice-dev/coppice/internal/secret/line"
)

func TestBroker_KeepsSecrets(t *testing.T) {
	t.Parallel()
	h := start(t)
	if all, err := h.List(t.Context()); err != nil || all == nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
	s := h.set("github", token)
	if s.Kind != "github" || s.From != "age" || s.Length != len(token) || len(s.Fingerprint) != 12 || s.Created.IsZero() {
		t.Errorf("%+v", s)
	}
	h.set("other", "another value of this test")
	if same := h.set("third", token); same.Fingerprint != s.Fingerprint {
		t.Errorf("%+v", same)
	}
	all, err := h.List(t.Context())
	if err != nil || len(all) != 3 || all[0] != s || all[1].Name != "other" || all[1].Fingerprint == s.Fingerprint {
		t.Errorf("%+v, %v", all, err)
	}
	if got, err := h.Test(t.Context(), "github"); err != nil || got != s {
		t.Errorf("%+v, %v", got, err)
	}
	shape, err := h.Shape(t.Context(), "github")
	if err != nil || !shape.Equal(grant.KindOf(token)) {
		t.Errorf("%v, %v", shape, err)
	}
	h.clean(token)
	h.end(unix.SIGKILL)
	h.again()
	if got, err := h.Test(t.Context(), "github"); err != nil || got != s {
		t.Errorf("after a crash: %+v, %v", got, err)
	}
	if err := h.Remove(t.Context(), "github", false); err != nil {
		t.Error(err)
	}
	if _, err := h.Shape(t.Context(), "github"); !fault.Is(err, fault.NotFound) || !strings.Contains(fault.HintOf(err),
		"coppice secret set github") {
		t.Errorf("%v (%s)", err, fault.HintOf(err))
	}
	if err := h.Remove(t.Context(), "github", false); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	// A copy of the home is worth nothing.
	if err := os.Remove(filepath.Join(h.user, ".config", "coppice", "identity")); err != nil {
		t.Fatal(err)
	}
	all, err = h.List(t.Context())
	if err != nil || len(all) != 2 || all[0].Name != "other" || all[0].Problem == "" || all[0].Hint == "" {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := h.Test(t.Context(), "other"); !fault.Is(err, fault.Unavailable) {
		t.Error(err)
	}
}

// TestIdentity_IsWhereSandboxesCannotSee checks that no environment moves the identity from the path that the built-in
// policy hides.
func TestIdentity_IsWhereSandboxesCannotSee(t *testing.T) {
	t.Parallel()
	const hidden = "/home/u/.config/coppice/identity"
	p, err := policy.Merge()
	if err != nil {
		t.Fatal(err)
	}
	builtIn, _ := p.Hidden("/home/u")
	for _, env := range [][]string{{"HOME=/home/u"}, {"HOME=/home/u", "XDG_CONFIG_HOME=/srv/config"}} {
		got, err := identityPath(env)
		if err != nil || got != hidden || !slices.Contains(builtIn, got) {
			t.Errorf("%q: %s, %v", env, got, err)
		}
	}
	for _, env := range [][]string{nil, {"HOME=u"}, {"XDG_CONFIG_HOME=/srv/config"}} {
		if got, err := identityPath(env); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("%q: %s, %v", env, got, err)
		}
	}
}

func TestBroker_RefusesWrongSecrets(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.set("github", token)
	for name, c := range map[string]struct {
		name, from, kind, value string
	}{
		"a wrong name": {"A/b", "", "", token}, "no value": {"a", "", "", ""}, "two lines": {"a", "", "", "one\ntwo"},
		"a space": {"a", "", "", token + " "}, "a wrong source": {"a", "ages", "", ""}, "a wrong kind": {"a", "", "gith", token},
		"another kind": {"a", "", "npm", token}, "a value for a file": {"a", "file:/etc/hostname", "", token},
		"a variable": {"a", "env:1", "", ""}, "bytes": {"a", "", "", "\xff\xfe\xfd" + token},
	} {
		_, err := h.Set(t.Context(), c.name, c.from, c.kind, []byte(c.value))
		if !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.NotFound) || fault.HintOf(err) == "" && c.value != "" ||
			strings.Contains(err.Error()+fault.HintOf(err), token) {
			t.Errorf("%s: %v (%s)", name, err, fault.HintOf(err))
		}
	}
	if all, err := h.List(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestBroker_ReadsOtherStores(t *testing.T) {
	t.Setenv("COPPICE_BROKER_TEST", token+"\n")
	h := start(t)
	file := filepath.Join(h.user, "token")
	write := func(value string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(token)
	from := map[string]string{"variable": "env:COPPICE_BROKER_TEST", "file": "file:" + file,
		"command": `command:sh -c 'printf %s "$COPPICE_BROKER_TEST"'`}
	var grants []client.Granted
	for name, source := range from {
		s, err := h.Set(t.Context(), name, source, "", nil)
		if name == "variable" {
			source = "age" // it is read once
		}
		if err != nil || s.From != source || s.Length != len(token) || s.Kind != "github" {
			t.Errorf("%s: %+v, %v (%s)", name, s, err, fault.HintOf(err))
		}
		grants = append(grants, client.Granted{Name: name, Secret: name})
	}
	g := h.gate(h.register("box", nil, grants...))
	for name := range from {
		g.want(name, token)
	}
	h.clean(token)
	const other = "another value of this test"
	write(other)
	g.want("file", other)
	t.Setenv("COPPICE_BROKER_TEST", other)
	h.Client = h.With(os.Environ())
	g.want("variable", token)
	g.want("command", token) // it is kept for a while
	if s, err := h.Test(t.Context(), "command"); err != nil || s.Length != len(other) {
		t.Errorf("%+v, %v", s, err)
	}
	g.want("command", other)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	g.refused("file", "a.example", fault.Denied)
	if _, err := h.Set(t.Context(), "none", "file:"+file, "", nil); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	if _, err := h.Set(t.Context(), "none", "vault:kv/a#b", "", nil); !fault.Is(err, fault.Invalid) ||
		!strings.Contains(fault.HintOf(err), "VAULT_ADDR") {
		t.Errorf("%v (%s)", err, fault.HintOf(err))
	}
}

func TestBroker_GivesWhatIsRegistered(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.set("github", token)
	if _, err := line.Dial(filepath.Join(h.dir, client.LineSocket), make([]byte, ticketLength), patience); !fault.Is(err,
		fault.Denied) || fault.HintOf(err) == "" {
		t.Errorf("an unknown ticket: %v", err)
	}
	until := time.Now().Add(10 * time.Second)
	ticket := h.register("box", nil, client.Granted{Name: "hub", Secret: "github"},
		client.Granted{Name: "short", Secret: "github", Until: until},
		client.Granted{Name: "over", Secret: "github", Until: time.Now()}, client.Granted{Name: "none", Secret: "unset"})
	g := h.gate(ticket)
	g.want("hub", token)
	if v, err := g.get("hub", "x.b.example"); v != token || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	for _, host := range []string{"c.example", "b.example", "a.example.c.example", "x.a.example", "", "127.0.0.1"} {
		g.refused("hub", host, fault.Denied)
	}
	if v, err := g.Get(t.Context(), "short", "a.example", "GET", "/"); err != nil || v.Until.After(until) {
		t.Errorf("%v, %v", v.Until, err)
	}
	for _, name := range []string{"over", "none", "other"} {
		g.refused(name, "a.example", fault.Denied)
	}
	all, err := h.List(t.Context())
	if err != nil || len(all) != 1 || all[0].Grants != 3 {
		t.Errorf("%+v, %v", all, err)
	}
	if err := h.Remove(t.Context(), "github", false); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "box") {
		t.Error(err)
	}
	other := h.gate(h.register("other", nil, client.Granted{Name: "mine", Secret: "github"}))
	other.refused("hub", "a.example", fault.Denied)
	other.want("mine", token)
	if err := h.Remove(t.Context(), "github", true); err != nil {
		t.Error(err)
	}
	other.drops("mine")
	other.refused("mine", "a.example", fault.Denied)
}

func TestBroker_DropsWhatChanges(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.set("github", token)
	h.set("kept", "another value of this test")
	hub, kept := client.Granted{Name: "hub", Secret: "github"}, client.Granted{Name: "kept", Secret: "kept"}
	ticket := h.register("box", nil, hub, kept)
	g := h.gate(ticket)
	g.want("hub", token)

	const second = "ghp_" + "second8YxNcPzT5vLbRj7HsDfGmEa3" + "123456"
	before, err := g.Get(t.Context(), "hub", "a.example", "GET", "/")
	if err != nil {
		t.Fatal(err)
	}
	h.set("github", second)
	g.drops("hub")
	if g.Fresh("hub", before) {
		t.Error("the value before the rotation is fresh")
	}
	g.want("hub", second)
	if after, err := g.Get(t.Context(), "hub", "a.example", "GET", "/"); err != nil || after.Version == before.Version {
		t.Errorf("version %d, %v", after.Version, err)
	}

	h.register("box", ticket, hub, kept) // no change
	hub.Hosts = []string{"a.example"}
	h.register("box", ticket, hub, kept)
	g.drops("hub")
	g.want("hub", second)
	g.refused("hub", "x.b.example", fault.Denied)
	h.register("box", ticket, kept)
	g.drops("hub")
	g.refused("hub", "a.example", fault.Denied)
	g.want("kept", "another value of this test")

	h.register("box", nil, kept) // another ticket
	g.drops("")
	if _, err := g.get("kept", "a.example"); !fault.Is(err, fault.Unavailable) {
		t.Error(err)
	}
	g = h.gate(h.register("box", ticket, kept))
	g.want("kept", "another value of this test")
	for range 2 {
		if err := h.Withdraw(t.Context(), "box"); err != nil {
			t.Error(err)
		}
	}
	g.drops("")
	if _, err := line.Dial(filepath.Join(h.dir, client.LineSocket), ticket, patience); !fault.Is(err, fault.Denied) {
		t.Errorf("a withdrawn ticket: %v", err)
	}
	if len(g.dropped) > 0 {
		t.Errorf("dropped %q", <-g.dropped)
	}
}

func TestBroker_RefusesWrongRegistrations(t *testing.T) {
	t.Parallel()
	h := start(t)
	good := client.Granted{Name: "a", Secret: "s", Hosts: []string{"a.example"}}
	ticket := h.register("box", nil, good)
	for name, r := range map[string]client.Registration{
		"a short ticket":    {Sandbox: "b", Ticket: ticket[1:], Grants: []client.Granted{good}},
		"another's ticket":  {Sandbox: "b", Ticket: ticket, Grants: []client.Granted{good}},
		"a grant twice":     {Sandbox: "box", Ticket: ticket, Grants: []client.Granted{good, good}},
		"no host":           {Sandbox: "box", Ticket: ticket, Grants: []client.Granted{{Name: "a", Secret: "s"}}},
		"every host":        {Sandbox: "box", Ticket: ticket, Grants: []client.Granted{{Name: "a", Secret: "s", Hosts: []string{"*"}}}},
		"too many":          {Sandbox: "box", Ticket: ticket, Grants: make([]client.Granted, maxGrants+1)},
		"no name or secret": {Sandbox: "box", Ticket: ticket, Grants: []client.Granted{{Hosts: good.Hosts}}},
	} {
		if err := h.Register(t.Context(), r); !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.Conflict) {
			t.Errorf("%s: %v", name, err)
		}
	}
	h.gate(ticket).refused("a", "a.example", fault.Denied) // still registered, without its secret
}

// TestBroker_BoundsGets asks more often than a gate that keeps values does.
func TestBroker_BoundsGets(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.set("github", token)
	g := h.gate(h.register("box", nil, client.Granted{Name: "a", Secret: "github"}, client.Granted{Name: "b", Secret: "github"}))
	given, began := 0, time.Now()
	for {
		_, err := g.get("a", "a.example")
		if fault.Is(err, fault.Unavailable) && strings.Contains(err.Error(), "too many") {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if given++; float64(given) > getsAtOnce+1+getsPerSecond*time.Since(began).Seconds() {
			t.Fatalf("%d values in %v", given, time.Since(began))
		}
	}
	if given < getsAtOnce {
		t.Errorf("%d values", given)
	}
	g.want("b", token)
}

// TestBroker_GivesConcurrently changes grants and secrets while gates ask: they get a value of the secret that is
// registered, or a refusal.
func TestBroker_GivesConcurrently(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.set("github", token)
	var all sync.WaitGroup
	for n := range 4 {
		sandbox := "box" + strconv.Itoa(n)
		one := client.Granted{Name: "hub", Secret: "github", Hosts: []string{"a.example"}}
		ticket := h.register(sandbox, nil, one)
		g := h.gate(ticket)
		all.Go(func() {
			for range 40 {
				if v, err := g.get("hub", "a.example"); err == nil && !strings.HasPrefix(v, "ghp_") || err != nil && fault.HintOf(err) == "" {
					t.Errorf("%q, %v", v, err)
				}
			}
		})
		all.Go(func() {
			for i := range 20 {
				r := client.Registration{Sandbox: sandbox, Ticket: ticket}
				if i%2 == 1 {
					r.Grants = []client.Granted{one}
				}
				if err := h.Register(t.Context(), r); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Go(func() {
		for i := range 20 {
			h.set("github", "ghp_"+strings.Repeat(string(rune('a'+i)), 36))
		}
	})
	all.Wait()
}

func TestBroker_IsOneForAHome(t *testing.T) {
	t.Parallel()
	h := start(t)
	first := h.again()
	// One that is started beside it, as by two programs at once, finds it.
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := client.Start(t.Context(), h.options()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if s := h.again(); s != first {
		t.Errorf("%+v, not %+v", s, first)
	}
	h.end(unix.SIGKILL)
	if _, err := h.Status(t.Context()); !fault.Is(err, fault.Unavailable) || fault.HintOf(err) == "" {
		t.Error(err)
	}
	for range 4 {
		all.Go(func() {
			if err := client.Start(t.Context(), h.options()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if s := h.again(); s.Boot == first.Boot || s.PID == first.PID {
		t.Errorf("%+v after %+v", s, first)
	}
}

// TestBroker_ExitsWithoutWork checks that a broker that may be idle for a moment only runs as long as something is
// registered.
func TestBroker_ExitsWithoutWork(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.end(unix.SIGTERM)
	h.idle = time.Second
	if err := client.Start(t.Context(), h.options()); err != nil {
		t.Fatal(err)
	}
	gone := func() bool { // a question would keep it running
		left, err := filepath.Glob(filepath.Join(h.dir, "run", "*.sock"))
		return err == nil && len(left) == 0
	}
	await(t, "its exit", gone)
	ticket := make([]byte, ticketLength)
	await(t, "a registration before the broker exits", func() bool {
		_ = client.Start(t.Context(), h.options())
		return h.Register(t.Context(), client.Registration{Sandbox: "box", Ticket: ticket}) == nil
	})
	pid := h.again().PID
	g := h.gate(ticket)
	if got, _ := unix.Wait4(pid, nil, unix.WNOHANG, nil); got == pid {
		t.Error("it has exited with a registration")
	}
	time.Sleep(2 * h.idle) // it must not exit, however slow the machine is
	if s, err := h.Status(t.Context()); err != nil || s.PID != pid {
		t.Errorf("%+v, %v", s, err)
	}
	if err := h.Withdraw(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	g.drops("")
	await(t, "its exit", gone)
	h.awaitExit(pid)
}

// TestBroker_ProtectsItself checks what other processes can do to the broker.
func TestBroker_ProtectsItself(t *testing.T) {
	t.Parallel()
	h := start(t)
	pid := h.again().PID
	for _, name := range []string{client.ControlSocket, client.LineSocket} {
		st, err := os.Lstat(filepath.Join(h.dir, name))
		if err != nil || st.Mode() != os.ModeSocket|0o600 {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
	var core unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_CORE, nil, &core); err == nil && core != (unix.Rlimit{}) || err != nil &&
		!errors.Is(err, unix.EPERM) {
		t.Errorf("%+v, %v", core, err)
	}
	st, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/mem")
	if err != nil {
		t.Fatal(err)
	}
	var raw unix.Stat_t
	if err := unix.Stat("/proc/"+strconv.Itoa(pid)+"/mem", &raw); err != nil || raw.Uid != 0 {
		t.Errorf("%v belongs to user %d, %v", st.Name(), raw.Uid, err)
	}
	if os.Geteuid() != 0 {
		if _, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ"); !errors.Is(err, os.ErrPermission) {
			t.Errorf("its environment can be read: %v", err)
		}
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	locked := slices.ContainsFunc(strings.Split(string(status), "\n"), func(l string) bool {
		f := strings.Fields(l)
		return len(f) == 3 && f[0] == "VmLck:" && f[1] != "0"
	})
	if os.Geteuid() == 0 && !locked {
		t.Errorf("no memory is locked: %s", status)
	}
}

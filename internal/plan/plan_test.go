package plan

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

const passwd = `root:x:0:0:root:/root:/bin/bash
bad line
daemon:x:1:1::/usr/sbin:
huge:x:99999999999:1::/:
web:x:33:34:web:relative:/bin/zsh
1000:*:1000:1000:container user:/:/bin/sh
`

const group = "root:x:0:\nadm:x:4:web,daemon\nweb:x:34:\nlog:x:5:web\n"

func TestIdentity(t *testing.T) {
	me := Caller{UID: 1001, GID: 1002, Name: "ann", Home: "/home/ann", Shell: "/bin/fish"}
	for _, c := range []struct {
		name string
		cfg  Config
		want User
		kind fault.Kind
	}{
		{"root by default", Config{Caller: me}, User{"root", 0, 0, nil, "/root", "/bin/bash"}, ""},
		{"me on the host's base", Config{Caller: me, HostBase: true},
			User{"ann", 1001, 1002, nil, "/home/ann", "/bin/fish"}, ""},
		{"the user of a container", Config{Caller: Caller{UID: 1000, GID: 1000, Home: "/home/agent"}, HostBase: true},
			User{"1000", 1000, 1000, nil, "/home/agent", "/bin/sh"}, ""},
		{"me elsewhere has no home", Config{Caller: me, User: UserMe}, User{"ann", 1001, 1002, nil, "/", "/bin/sh"}, ""},
		{"real root is me", Config{Caller: Caller{Root: true}, User: UserMe, HostBase: true},
			User{"root", 0, 0, nil, "/root", "/bin/bash"}, ""},
		{"a name", Config{Caller: me, User: "daemon"}, User{"daemon", 1, 1, nil, "/usr/sbin", "/bin/sh"}, ""},
		{"a name with groups", Config{Caller: Caller{Root: true}, User: "web"},
			User{"web", 33, 34, []uint32{4, 5}, "/", "/bin/zsh"}, ""},
		{"unknown name", Config{Caller: me, User: "nobody-here"}, User{}, fault.NotFound},
		{"invalid id", Config{Caller: me, User: "huge"}, User{}, fault.NotFound},
	} {
		u, err := Identity(c.cfg, Facts{Passwd: []byte(passwd), Group: []byte(group)})
		if fault.KindOf(err) != c.kind {
			t.Errorf("%s: %v: want %q", c.name, err, c.kind)
		}
		if err == nil &&
			(u.Name != c.want.Name || u.UID != c.want.UID || u.GID != c.want.GID || u.Home != c.want.Home ||
				u.Shell != c.want.Shell || !slices.Equal(u.Groups, c.want.Groups)) {
			t.Errorf("%s: %+v: want %+v", c.name, u, c.want)
		}
	}
}

func TestDecide(t *testing.T) {
	me, root := Caller{UID: 1001, GID: 1001}, Caller{Root: true}
	full := Facts{Landlock: 7, PidMax: true}
	for _, c := range []struct {
		name   string
		cfg    Config
		facts  Facts
		states map[string]string
		kind   fault.Kind
	}{
		{"ordinary root", Config{Caller: me}, full,
			map[string]string{"user": On, "root emulation": On, "net": On, "landlock": On, "freeze": Weak}, ""},
		{"ordinary me", Config{Caller: me, User: UserMe}, full, map[string]string{"user": On, "root emulation": ""}, ""},
		{"real root", Config{Caller: root}, full, map[string]string{"user": Weak, "root emulation": ""}, ""},
		{"real root, shifted", Config{Caller: root}, Facts{Shift: 1 << 30},
			map[string]string{"user": On, "landlock": Off}, ""},
		{"the host's network", Config{Caller: me, Net: NetHost}, Facts{},
			map[string]string{"net": Off, "landlock": Weak}, ""},
		{"a control group", Config{Caller: me, Limits: Limits{Memory: 1 << 30, Pids: 10}},
			Facts{Cgroup: CgroupFacts{Freeze: true, Memory: true, Pids: true}},
			map[string]string{"freeze": On, "memory": On, "pids": On}, ""},
		{"none", Config{Caller: me, Limits: Limits{Memory: 1 << 30, Pids: 10}}, Facts{},
			map[string]string{"memory": Weak, "pids": Weak}, ""},
		{"pid_max", Config{Caller: root, Limits: Limits{Pids: 512}}, full, map[string]string{"pids": On}, ""},
		{"pid_max, too low", Config{Caller: root, Limits: Limits{Pids: 5}}, full, map[string]string{"pids": Weak}, ""},
		{"no task limit", Config{Caller: root, Limits: Limits{Pids: 5}}, Facts{}, map[string]string{"pids": Off}, ""},
		{"an unenforceable disk limit", Config{Caller: me, Limits: Limits{Disk: 1}}, full, nil, fault.Unsupported},
		{"a disk limit", Config{Caller: root, Limits: Limits{Disk: 1}, DiskBy: "project quota 3000000000"}, full,
			map[string]string{"disk": On}, ""},
		{"workspace with a disk limit",
			Config{Caller: root, Tier: TierWorkspace, Limits: Limits{Disk: 1}, DiskBy: "btrfs qgroup 0/257"}, full, nil,
			fault.Unsupported},
		{"limits of commands", Config{Caller: me, Limits: Limits{TimeMS: 1000, Output: 1, Files: 1}}, Facts{},
			map[string]string{"time": On, "output": On, "files": On}, ""},
		{"a CPU limit", Config{Caller: me, Limits: Limits{MilliCPUs: 1}}, Facts{Cgroup: CgroupFacts{CPU: true}},
			map[string]string{"cpus": On}, ""},
		{"an unenforceable CPU limit", Config{Caller: root, Limits: Limits{MilliCPUs: 1}},
			Facts{Cgroup: CgroupFacts{Freeze: true, Memory: true, Pids: true}}, nil, fault.Unsupported},
		{"workspace with a CPU limit", Config{Caller: root, Tier: TierWorkspace, Limits: Limits{MilliCPUs: 1}},
			Facts{Cgroup: CgroupFacts{CPU: true}}, nil, fault.Unsupported},
		{"workspace with a time limit", Config{Caller: root, Tier: TierWorkspace, Limits: Limits{TimeMS: 1}}, full, nil,
			fault.Unsupported},
		{"supervised", Config{Caller: me, Tier: TierSupervised, Phases: []Phase{{}}, Journal: "/j"}, full,
			map[string]string{"net": On, "programs": On, "gate": On}, ""},
		{"supervised with the network off",
			Config{Caller: me, Tier: TierSupervised, Net: NetOff, Phases: []Phase{{}}, Journal: "/j"}, full,
			map[string]string{"net": On, "programs": On, "gate": On}, ""},
		{"supervised without Landlock", Config{Caller: me, Tier: TierSupervised, Phases: []Phase{{}}, Journal: "/j"}, Facts{},
			map[string]string{"gate": Weak}, ""},
		{"supervised with rules", Config{Caller: me, Tier: TierSupervised, Net: NetRules, Phases: []Phase{{}}, Journal: "/j"},
			full, map[string]string{"net": On}, ""},
		{"supervised with the host's network",
			Config{Caller: me, Tier: TierSupervised, Net: NetHost, Phases: []Phase{{}}, Journal: "/j"}, full, nil,
			fault.Invalid},
		{"container of root", Config{Caller: me, Tier: TierContainer, Runtime: "/r", User: UserRoot, Phases: []Phase{{}},
			Journal: "/j"}, full, map[string]string{"container": On, "own user": ""}, ""},
		{"container of me", Config{Caller: me, Tier: TierContainer, Runtime: "/r", User: UserMe, Phases: []Phase{{}},
			Journal: "/j"}, full, map[string]string{"container": On, "own user": Weak}, ""},
		{"container of me on the host's base", Config{Caller: me, Tier: TierContainer, Runtime: "/r", HostBase: true,
			Phases: []Phase{{}}, Journal: "/j"}, full, map[string]string{"own user": Weak}, ""},
		{"supervised without a policy", Config{Caller: me, Tier: TierSupervised, Journal: "/j"}, full, nil, fault.Internal},
		{"supervised without a journal", Config{Caller: me, Tier: TierSupervised, Phases: []Phase{{}}}, full, nil,
			fault.Internal},
		{"rules without a gate", Config{Caller: me, Net: NetRules}, full, nil, fault.Unsupported},
		{"unknown network", Config{Caller: me, Net: "bridge"}, full, nil, fault.Invalid},
		{"workspace", Config{Caller: me, Tier: TierWorkspace}, full, map[string]string{"confinement": Off, "user": ""}, ""},
		{"locked workspace", Config{Caller: me, Tier: TierWorkspace, Confine: ConfineAuto, Net: NetHost}, full,
			map[string]string{Confinement: Weak, HostFiles: On, "signals": On, "unix sockets": On, "system calls": On,
				"net": Off, "metadata": Weak}, ""},
		{"locked workspace without a network", Config{Caller: me, Tier: TierWorkspace, Confine: ConfineRequire, Net: NetOff},
			full, map[string]string{Confinement: Weak, "net": On}, ""},
		{"locked workspace of an older kernel", Config{Caller: me, Tier: TierWorkspace, Confine: ConfineAuto},
			Facts{Landlock: 2}, map[string]string{HostFiles: Weak, "signals": Off}, ""},
		{"locked workspace without Landlock", Config{Caller: me, Tier: TierWorkspace, Confine: ConfineAuto}, Facts{},
			map[string]string{Confinement: Weak, HostFiles: Off, "signals": Off, "unix sockets": "", "system calls": On}, ""},
		{"locked workspace that requires Landlock", Config{Caller: me, Tier: TierWorkspace, Confine: ConfineRequire},
			Facts{Landlock: 5}, nil, fault.Unsupported},
		{"strong workspace", Config{Caller: me, Tier: TierWorkspace, Confine: ConfineAuto, Strong: true}, full, nil,
			fault.Unsupported},
		{"workspace with limits", Config{Caller: me, Tier: TierWorkspace, Limits: Limits{Pids: 5}}, full, nil,
			fault.Unsupported},
	} {
		if c.cfg.Tier == "" {
			c.cfg.Tier = TierProcess
		}
		_, e, err := Decide(c.cfg, c.facts)
		if fault.KindOf(err) != c.kind {
			t.Errorf("%s: %v: want %q", c.name, err, c.kind)
		}
		if err != nil && fault.HintOf(err) == "" {
			t.Errorf("%s: no hint: %v", c.name, err)
		}
		for item, want := range c.states {
			if got := e.State(item); got != want {
				t.Errorf("%s: %s is %q: want %q", c.name, item, got, want)
			}
		}
		for _, i := range e.Items {
			if i.State != On && i.Detail == "" {
				t.Errorf("%s: %s is %s without a detail", c.name, i.Name, i.State)
			}
		}
	}
}

func TestLacks(t *testing.T) {
	for _, c := range []struct {
		items []Item
		want  string
	}{
		{nil, ""},
		{[]Item{{"user", On, ""}, {"memory", On, ""}}, ""},
		{[]Item{{"net", Off, "the host's network"}, {"hide", Off, "nothing is hidden"},
			{"landlock", Off, "other walls do it"}, {"confinement", Off, ""}}, ""},
		{[]Item{{"freeze", Weak, ""}, {"pipes", Weak, ""}, {"programs", Off, ""}, {"renames", Weak, ""}}, ""},
		{[]Item{{"user", Weak, ""}, {"landlock", Weak, ""}, {"gate", Weak, ""}, {"proc", Weak, ""}, {"whatever", Weak, ""}},
			"user landlock gate proc whatever"},
		{[]Item{{"memory", Weak, ""}, {"pids", Off, ""}, {"cpus", Off, ""}, {"disk", Off, ""}, {"files", Weak, ""}},
			"memory pids cpus disk files"},
	} {
		var got []string
		for _, i := range (Enforced{Items: c.items}).Lacks() {
			got = append(got, i.Name)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %q", c.items, got)
		}
	}
	// Lacks knows each limit that is enforced.
	_, e, err := Decide(
		Config{Caller: Caller{Root: true}, Tier: TierProcess, DiskBy: "x", Limits: Limits{1, 1000, 1, 1, 1, 1, 1}},
		Facts{PidMax: true, Cgroup: CgroupFacts{CPU: true}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range limitNames {
		if e.State(name) == "" {
			t.Errorf("no item %s", name)
		}
	}
}

func TestMaps(t *testing.T) {
	for id := range 5000 {
		base := ShiftFor(strings.Repeat("x", id%50) + string(rune(id)))
		if base < 0x70000000 || uint64(base)+ShiftSize > 1<<31 || base%ShiftSize != 0 {
			t.Fatalf("ids begin at %#x", base)
		}
	}
	uids, gids, err := Maps(Config{Caller: Caller{UID: 1001, GID: 1002}, User: UserMe}, Facts{})
	if err != nil || !slices.Equal(uids, []IDMap{{1001, 0, 1}}) || !slices.Equal(gids, []IDMap{{1002, 0, 1}}) {
		t.Errorf("%v %v %v", uids, gids, err)
	}
}

func TestMergeEnv(t *testing.T) {
	base := []string{"A=1", "B=2"}
	got := MergeEnv(base, []string{"B=3", "nothing", "=x", "C=a=b", "D=\x00"}, []string{"C="})
	if want := []string{"A=1", "B=3", "C="}; !slices.Equal(got, want) || base[1] != "B=2" {
		t.Errorf("%q: want %q", got, want)
	}
}

func FuzzParsePasswd(f *testing.F) {
	f.Add([]byte(passwd), []byte(group))
	f.Fuzz(func(t *testing.T, p, g []byte) {
		for _, u := range ParsePasswd(p) {
			u = u.complete()
			if u.Name == "" || !strings.HasPrefix(u.Home, "/") || !strings.HasPrefix(u.Shell, "/") {
				t.Errorf("%+v", u)
			}
			ParseGroups(g, u.Name)
		}
	})
}

func TestEnvironment_HasTheClientLast(t *testing.T) {
	t.Parallel()
	me := User{UID: 1000, Name: "me"}
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{}, "PATH=/usr/local/bin:/usr/bin:/bin"},
		{Config{Client: true}, "PATH=/usr/local/bin:/usr/bin:/bin:/run/coppice-bin"},
		{Config{Client: true, Env: []string{"PATH=/opt/bin"}}, "PATH=/opt/bin:/run/coppice-bin"},
		{Config{Client: true, Env: []string{"PATH="}}, "PATH=:/run/coppice-bin"},
	} {
		if got := environment(c.config, me); got[0] != c.want {
			t.Errorf("%+v: %q; want %q", c.config, got[0], c.want)
		}
	}
}

func TestUnderstands(t *testing.T) {
	t.Parallel()
	for protocol, want := range map[string]bool{"": false, "0": false, "1": true, strconv.Itoa(Protocol): true,
		strconv.Itoa(Protocol + 1): false, "1x": false, "-1": false} {
		if got := Understands(protocol); got != want {
			t.Errorf("%q: %t", protocol, got)
		}
	}
}

// Package plan decides how a sandbox is confined, as values: from what is asked
// (Config) and what the host and the sandbox's root offer (Facts) it makes what
// init carries out (Guest) and what may be told to people (Enforced). It is
// pure. It may be imported by box, box/guest and the wiring; it imports rootspec
// and fault.
package plan

import (
	"time"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Version of Config and Guest; a keeper refuses another one.
const Version = 1

// The tiers.
const (
	TierProcess   = "process"   // namespaces, own root, filters
	TierWorkspace = "workspace" // history without confinement
)

// The networks.
const (
	NetOff  = "off"  // a loopback of its own, nothing else
	NetHost = "host" // the host's network
)

// The users that are not names of the sandbox's /etc/passwd.
const (
	UserRoot = "root"
	UserMe   = "me"
)

// Config is what the caller of box.Start asks for.
type Config struct {
	Version int           `json:"version"` // set by box.Start
	ID      string        `json:"id"`
	Name    string        `json:"name,omitempty"` // for people; in the environment as COPPICE_SANDBOX
	RunDir  string        `json:"run_dir"`        // absolute; holds keeper.sock, keeper.log and the mount point
	Spec    rootspec.Spec `json:"spec"`
	Tier    string        `json:"tier"` // TierProcess when empty
	// User is UserRoot, UserMe or a name of the sandbox's own /etc/passwd. When
	// empty it is UserMe on the host's base, else UserRoot.
	User     string   `json:"user,omitempty"`
	HostBase bool     `json:"host_base,omitempty"`
	Net      string   `json:"net,omitempty"`      // NetOff when empty
	Hostname string   `json:"hostname,omitempty"` // Name when empty
	Env      []string `json:"env,omitempty"`      // KEY=VALUE, for every command
	Limits   Limits   `json:"limits,omitzero"`
	// KeepTmp leaves /tmp in the root, so that it is in the history; else it is
	// a tmpfs that ends with the box.
	KeepTmp bool   `json:"keep_tmp,omitempty"`
	Caller  Caller `json:"caller"`
	// IdleAfter is how long a box without processes, and without results that
	// nobody has fetched, lives on. 0 is DefaultIdle, below 0 is for ever.
	IdleAfter time.Duration `json:"idle_after,omitempty"`
	// NoCgroup leaves control groups alone even where they could be made.
	NoCgroup bool `json:"no_cgroup,omitempty"`
	// NoIDMap keeps the ids of the initial user namespace for real root even
	// where they could be shifted.
	NoIDMap bool `json:"no_idmap,omitempty"`
}

// DefaultIdle is Config.IdleAfter's default.
const DefaultIdle = 30 * time.Second

// Caller is who the daemon is on the host. A daemon that is not real root runs
// as uid 0 of a user namespace in which that id alone is mapped.
type Caller struct {
	Root  bool   `json:"root,omitempty"` // real root; the ids below are then 0
	UID   uint32 `json:"uid"`
	GID   uint32 `json:"gid"`
	Name  string `json:"name,omitempty"`
	Home  string `json:"home,omitempty"`
	Shell string `json:"shell,omitempty"`
}

// Limits of a sandbox; 0 is none.
type Limits struct {
	Memory int64 `json:"memory,omitempty"` // bytes
	Pids   int64 `json:"pids,omitempty"`
	Disk   int64 `json:"disk,omitempty"` // bytes
}

// The states of an Item.
const (
	On   = "on"
	Off  = "off"
	Weak = "weak" // put up, with less than it should have; Detail says why
)

// Item is one wall as it was really put up.
type Item struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
}

// Enforced is what holds in a started box.
type Enforced struct {
	Tier  string `json:"tier"`
	User  string `json:"user"` // name (uid:gid) inside
	Items []Item `json:"items"`
}

// State gives the state of the named wall, or "".
func (e Enforced) State(name string) string {
	for _, i := range e.Items {
		if i.Name == name {
			return i.State
		}
	}
	return ""
}

// IDMap is one line of a uid or gid map.
type IDMap struct {
	Inside  uint32 `json:"inside"`
	Outside uint32 `json:"outside"` // as the keeper sees it
	Size    uint32 `json:"size"`
}

// Guest is what init is told.
type Guest struct {
	Version  int      `json:"version"`
	Tier     string   `json:"tier"`
	Dir      string   `json:"dir,omitempty"` // tier workspace: the working directory
	Hostname string   `json:"hostname,omitempty"`
	User     User     `json:"user"`
	Env      []string `json:"env"` // of every command, complete
	Caps     []uint   `json:"caps,omitempty"`
	Loopback bool     `json:"loopback,omitempty"` // bring lo up
	Netlink  bool     `json:"netlink,omitempty"`
	Tmp      bool     `json:"tmp,omitempty"`    // tmpfs on /tmp
	Resolv   []byte   `json:"resolv,omitempty"` // for /etc/resolv.conf; nil leaves it
	Emulate  bool     `json:"emulate,omitempty"`
	Promote  bool     `json:"promote,omitempty"`
	Landlock bool     `json:"landlock,omitempty"` // put up scopes
	PidMax   int      `json:"pid_max,omitempty"`  // of the pid namespace; 0 leaves it
	Tasks    bool     `json:"tasks,omitempty"`    // tasks are limited, init's among them
	NProc    uint64   `json:"nproc,omitempty"`    // RLIMIT_NPROC; 0 leaves it
	Data     uint64   `json:"data,omitempty"`     // RLIMIT_DATA; 0 leaves it
	Outside  bool     `json:"outside,omitempty"`  // the keeper freezes, by the control group that init is in
}

// SingleID reports whether one uid alone is mapped.
func SingleID(m []IDMap) bool { return len(m) == 1 && m[0].Size == 1 }

// Package plan decides how a sandbox is confined. From what is asked
// (Config) and what the host and the sandbox's root offer (Facts) it makes what
// init carries out (Guest) and what may be told to people (Enforced), as values. It is
// pure. It may be imported by box, box/guest, gate/control, gate/process and the wiring; it imports rootspec
// and fault.
package plan

import (
	"slices"
	"strconv"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Version of Config and Guest; a keeper refuses another one.
const Version = 1

// Protocol is the number of what the outside and the inside of tier gvisor are to each other: a
// memory image has its init, so that the keeper, the conductor and gVisor's processes of one build
// of Coppice go on with the init of another. An image is resumed by a build with the same number,
// and by a newer one that Understands it; all others refuse it. What it covers is written down in
// testdata/protocol.txt of packages initlink, relay and gvisor, and their tests fail when it
// changes. Then the number is raised, unless
//
//   - a message to init has a new field, which is left out where it is not needed: an init that
//     does not know it refuses the message (initlink.Message.Obey);
//   - there is a new message to init, and who sends it waits for its answer by the keeper's ask:
//     an init that does not know it answers initlink.MsgUnknown;
//   - a message of init's has a new field, and the outside does without: that is what an
//     older one's lacks.
//
// It is raised, above all, when a field or message goes, or means something else; with every
// change of the relay's frames; and with every change of how the sandbox is described to
// gVisor, which compares that on resume.
//
// In 1, init gave commands a filter; since 2, the kernel refuses their calls without, which the
// kernel of an older build would not.
const Protocol = 2

// Understands reports whether this build goes on with the init of an image that has a number,
// in decimal, as its Protocol.
func Understands(protocol string) bool {
	n, err := strconv.Atoi(protocol)
	return err == nil && n >= 1 && n <= Protocol
}

// The tiers.
const (
	TierWorkspace  = "workspace"  // history without confinement
	TierProcess    = "process"    // namespaces, own root, filters
	TierSupervised = "supervised" // all of that, the gate, and a record of the programs that are started
	TierGvisor     = "gvisor"     // a kernel of the sandbox's own, in user space, and the gate
)

// Tiers are all of them, the weakest first.
var Tiers = []string{TierWorkspace, TierProcess, TierSupervised, TierGvisor}

// The networks.
const (
	NetOff   = "off"   // nothing but a loopback of its own; in tier supervised the gate tells what was tried
	NetHost  = "host"  // the host's network; not in tier supervised
	NetRules = "rules" // what a policy allows; in tier supervised alone
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
	User     string  `json:"user,omitempty"`
	HostBase bool    `json:"host_base,omitempty"`
	Net      string  `json:"net,omitempty"`    // NetOff when empty
	Phases   []Phase `json:"phases,omitempty"` // tier supervised: what the gate keeps to
	// the directory of the host in which gate and keeper tell what happens, and of what is refused;
	// needed in tier supervised, and with decoys
	Journal string `json:"journal,omitempty"`
	// the secret of the key that what is told there is sealed by; see package journal
	JournalKey []byte   `json:"journal_key,omitempty"`
	Hostname   string   `json:"hostname,omitempty"` // Name when empty
	Env        []string `json:"env,omitempty"`      // KEY=VALUE, for every command
	Limits     Limits   `json:"limits,omitzero"`
	// DiskBy says what holds the root to Limits.Disk, which whoever made the
	// root has done; "" is nothing.
	DiskBy string `json:"disk_by,omitempty"`
	// KeepTmp leaves /tmp in the root, so that it is in the history; else it is
	// a tmpfs that ends with the box.
	KeepTmp bool   `json:"keep_tmp,omitempty"`
	Caller  Caller `json:"caller"`
	// Self shows the run directory's SelfDir inside, at SelfAt.
	Self bool `json:"self,omitempty"`
	// Strong refuses to start where a wall or limit is less than it should be: see
	// Enforced.Lacks.
	Strong bool `json:"strong,omitempty"`
	// Require names the protections with which the sandbox has run before. A start
	// that lacks one is refused: see Enforced.Lost.
	Require []string `json:"require,omitempty"`
	// Known are the findings of earlier starts of the home. A start that finds less is
	// refused: see Finding.
	Known []Finding `json:"known,omitempty"`
	// Trace records the programs that are started; see wire.StartedProgram. Tier supervised
	// always does.
	Trace bool `json:"trace,omitempty"`
	// Record is how much of each stream of a command's output is recorded, in bytes; no
	// more than MaxRecord, and 0 is none. How much was written is told all the same.
	Record int64 `json:"record,omitempty"`
	// Hidden is how many places of what the root stands on Spec does not show.
	Hidden int `json:"hidden,omitempty"`
	// Access is what can be changed, and what of the host is shown besides.
	Access rootspec.Access `json:"access,omitzero"`
	// Dirs are where commands begin that do not say, the first that can be entered; after
	// them it is the user's home. In tier workspace they are paths of the host.
	Dirs []string `json:"dirs,omitempty"`
	// Shared are directories of the host that are shown read-only, each at
	// rootspec.SharedPath of its place in the list; rootspec.MaxShared at most. Not in tier workspace.
	Shared []string `json:"shared,omitempty"`
	// Tokens are what of Access.Decoys nobody sends but who has opened one; in tier
	// supervised the gate looks for them.
	Tokens []Token `json:"tokens,omitempty"`
	// OnTouch is what follows when a decoy is opened, or a token comes to the gate.
	OnTouch string `json:"on_touch,omitempty"`
	// Asks says that Phases have people asked about what they do not name.
	Asks bool `json:"asks,omitempty"`
	// IdleAfter is how long a box without processes, and without results that
	// nobody has fetched, lives on. 0 is DefaultIdle, below 0 is for ever.
	IdleAfter time.Duration `json:"idle_after,omitempty"`
	// Image is a directory with a memory image, absolute, in tier gvisor: its processes go
	// on. Until Reseal nothing passes the gate.
	Image string `json:"image,omitempty"`
	// MemoryFacts are set by box.Start in tier gvisor: what has to be the same where an image
	// of the box's memory is resumed.
	MemoryFacts map[string]string `json:"memory_facts,omitempty"`
	// Init is a file with the program that is PID 1 in Image, absolute; "" is the keeper's own
	// program. The box has it locked (flock) as long as it lives.
	Init string `json:"init,omitempty"`
	// NoCgroup leaves control groups alone even where they could be made.
	NoCgroup bool `json:"no_cgroup,omitempty"`
	// NoIDMap keeps the ids of the initial user namespace for real root even
	// where they could be shifted.
	NoIDMap bool `json:"no_idmap,omitempty"`
}

// MaxRecord is the most that Config.Record may be: policy.MaxOutput, which is not imported
// here, since the processes of a box would wait at their start for all that a policy's
// reader needs.
const MaxRecord = 1 << 20

// Token is a token of a decoy.
type Token struct {
	Path string `json:"path"` // of the decoy, inside
	Text string `json:"text"`
}

// TouchStop is the Config.OnTouch that has the keeper kill all that runs; any other one
// is told, and no more.
const TouchStop = "stop"

// Gated reports whether the box's network is the gate.
func (c Config) Gated() bool { return c.Tier == TierSupervised || c.Tier == TierGvisor }

// Confined reports whether the box has namespaces and a root of its own.
func (c Config) Confined() bool { return c.Tier != TierWorkspace }

// Phase is a policy that holds until a time. The phases of a box are in order of their
// ends, and the last one holds for ever.
type Phase struct {
	Policy string    `json:"policy"`         // as policy.Policy.Canonical writes it
	Digest string    `json:"digest"`         // as policy.Policy.Digest gives it; another one is refused
	Until  time.Time `json:"until,omitzero"` // zero is for ever
}

// The place where the outside listens for what the inside asks of it. It is a
// directory that is shown, and not a socket, so that whoever listens can begin
// anew; the socket's own name inside is a link.
const (
	SelfDir    = "self"              // in the run directory
	SelfName   = "sock"              // in SelfDir
	SelfAt     = "/run/coppice"      // where SelfDir is shown, read-only
	SelfSocket = "/run/coppice.sock" // the link
)

// InnerPath is where coppice-init is in a sandbox of tier gvisor, and the name by which it is
// PID 1 there.
const InnerPath = "/run/coppice-init"

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
	Memory    int64 `json:"memory,omitempty"` // bytes
	Pids      int64 `json:"pids,omitempty"`
	Disk      int64 `json:"disk,omitempty"`       // bytes
	MilliCPUs int64 `json:"milli_cpus,omitempty"` // thousandths of a processor
	TimeMS    int64 `json:"time_ms,omitempty"`    // of one command
	Output    int64 `json:"output,omitempty"`     // bytes, of one command
	Files     int64 `json:"files,omitempty"`      // open in one process
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

// Counts names the limit of what the kernel counts for the owner of a user namespace.
const Counts = "kernel counts"

// Descriptors names what init lacks where it may open too few files to find the parent of
// each program.
const Descriptors = "descriptors"

// Enforced is what holds in a started box.
type Enforced struct {
	Tier  string `json:"tier"`
	User  string `json:"user"` // name (uid:gid) inside
	Items []Item `json:"items"`
	// Quiet names protections that have an item only if they are weak or off.
	Quiet []string `json:"quiet,omitempty"`
	// Found is what the start found out about the host.
	Found []Finding `json:"found,omitempty"`
}

// State gives the state of the named wall, or "".
func (e Enforced) State(name string) string { return e.item(name).State }

// item returns the named item, or a zero Item.
func (e Enforced) item(name string) Item {
	for _, i := range e.Items {
		if i.Name == name {
			return i
		}
	}
	return Item{}
}

// Bounded cuts the details of e, which may repeat what a sandbox wrote, to what fits into a
// frame of the keeper and a record of the ledger. No item is left out.
func (e Enforced) Bounded() Enforced {
	e.Items = slices.Clone(e.Items)
	room := limit.EnforcedText
	for i := range e.Items {
		d := &e.Items[i].Detail
		*d = limit.Cut(*d, max(min(limit.EnforcedDetail, room), len("...")))
		room -= len(*d)
	}
	return e
}

// notWalls are the items that keep nothing in: less of them is less comfort.
var notWalls = []string{"attributes", "denials", "freeze", "pipes", "programs", "renames"}

// Lacks gives the walls and limits that hold less than they should: those that are
// weak, and limits that nothing enforces. Other walls are off where nobody asked for
// them, or where others do all of their work.
func (e Enforced) Lacks() []Item {
	var out []Item
	for _, i := range e.Items {
		if i.State == Weak && !slices.Contains(notWalls, i.Name) || i.State == Off && slices.Contains(limitNames, i.Name) {
			out = append(out, i)
		}
	}
	return out
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
	Dirs     []string `json:"dirs,omitempty"` // where commands begin that do not say: see Config.Dirs
	Hostname string   `json:"hostname,omitempty"`
	User     User     `json:"user"`
	Env      []string `json:"env"` // of every command, complete
	Caps     []uint   `json:"caps,omitempty"`
	Loopback bool     `json:"loopback,omitempty"` // bring lo up
	Netlink  bool     `json:"netlink,omitempty"`
	Tmp      bool     `json:"tmp,omitempty"`    // tmpfs on /tmp
	Memory   int64    `json:"memory,omitempty"` // bytes that a file system in memory may hold; 0: what the kernel lets it
	Resolv   []byte   `json:"resolv,omitempty"` // for /etc/resolv.conf; nil leaves it
	CA       []byte   `json:"ca,omitempty"`     // PEM of the gate's authority, for the trust stores; nil leaves them
	Emulate  bool     `json:"emulate,omitempty"`
	Promote  bool     `json:"promote,omitempty"`
	Trace    bool     `json:"trace,omitempty"`    // note the programs that are started
	Tell     bool     `json:"tell,omitempty"`     // tell of system calls that are refused
	Landlock bool     `json:"landlock,omitempty"` // put up scopes
	PidMax   int      `json:"pid_max,omitempty"`  // of the pid namespace; 0 leaves it
	Tasks    bool     `json:"tasks,omitempty"`    // tasks are limited, init's among them
	NProc    uint64   `json:"nproc,omitempty"`    // RLIMIT_NPROC; 0 leaves it
	Data     uint64   `json:"data,omitempty"`     // RLIMIT_DATA; 0 leaves it
	Files    uint64   `json:"files,omitempty"`    // RLIMIT_NOFILE of commands, and not of init; 0 leaves it
	Shared   int      `json:"shared,omitempty"`   // show so many descriptors, from the second on, at rootspec.SharedPath
	Self     bool     `json:"self,omitempty"`     // show the next descriptor of the setup at SelfAt
	Outside  bool     `json:"outside,omitempty"`  // the keeper freezes, by the control group that init is in
	Resume   bool     `json:"resume,omitempty"`   // tier gvisor: a memory image comes with the setup
	Gate     bool     `json:"gate,omitempty"`     // tier gvisor: the end of the gate's link comes with the setup
	// Regions say what files of init's may be laid over: see rootspec.MayCover.
	Regions []rootspec.Region `json:"regions,omitempty"`
	// the device of the decoys: see rootspec.Files; 0 in tier gvisor, where init sees others
	Decoys uint64 `json:"decoys,omitempty"`
	// tier gvisor: where the policy has mounts; neither they nor what is above them may be moved
	Fixed []string `json:"fixed,omitempty"`
	// Java are stores of authorities of Java's, with the gate's added, to lay over the sandbox's.
	Java []JavaStore `json:"java,omitempty"`
}

// SingleID reports whether one uid alone is mapped.
func SingleID(m []IDMap) bool { return len(m) == 1 && m[0].Size == 1 }

// Package plan decides how a sandbox is confined. From a request (Config) and from what the host and the
// sandbox's root offer (Facts) it computes what init carries out (Guest) and what is reported to the user
// (Enforced). It is pure: values in, values out. It may be imported by box, box/guest, gate/control,
// gate/process, grants, engine and the wiring; it imports rootspec and fault.
package plan

import (
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Version is that of Config and Guest; a keeper refuses any other.
const Version = 1

// Protocol is the version of the protocol between the outside and the inside of tier gvisor. A memory image
// includes its init, so the keeper, the conductor and gVisor's processes of one build of Coppice
// run with the init of another. An image is resumed by a build with the same version, and by a newer one that
// Understands it; all others refuse it. testdata/protocol.txt of packages initlink, relay and gvisor lists
// what it covers, and their tests fail when that changes. The version is then raised, unless
//
//   - a message to init has a new field, which is omitted where it is not needed: an init that
//     does not know it refuses the message (initlink.Message.Obey);
//   - there is a new message to init, and the keeper sends it with ask, which waits for the
//     answer: an init that does not know it answers initlink.MsgUnknown;
//   - a message from init has a new field, and the outside works without it, because an older
//     init does not send it.
//
// It must be raised when a field or message is removed or changes its meaning, with every change of the
// relay's frames, and with every change of how the sandbox is described to gVisor, which compares that on
// resume.
//
// In version 1, init gave commands a filter; since version 2 the kernel refuses their calls without one,
// which the kernel of an older build would not. Since version 3 the sandbox shows the program coppice; it is resumed
// without that program if its image has none, since gVisor compares the mounts.
const Protocol = 3

// Understands reports whether this build can resume an image whose init has the given Protocol, in decimal.
func Understands(protocol string) bool {
	n, err := strconv.Atoi(protocol)
	return err == nil && n >= 1 && n <= Protocol
}

// The tiers.
const (
	TierWorkspace  = "workspace"  // history without confinement
	TierProcess    = "process"    // namespaces, own root, filters
	TierSupervised = "supervised" // as process, with the gate, and with a record of the started programs
	TierContainer  = "container"  // as supervised, in a container that an OCI runtime of the host makes
	TierGvisor     = "gvisor"     // the sandbox's own kernel in user space, and the gate
)

// Tiers lists all tiers, the weakest first.
var Tiers = []string{TierWorkspace, TierProcess, TierSupervised, TierContainer, TierGvisor}

// The networks.
const (
	NetOff   = "off"   // only the sandbox's own loopback; in tiers with a gate, the gate reports attempts
	NetHost  = "host"  // the host's network; only in tiers without a gate
	NetRules = "rules" // what the policy allows; only in tiers with a gate
)

// The users that are not names of the sandbox's /etc/passwd.
const (
	UserRoot = "root"
	UserMe   = "me"
)

// Config is the request of a caller of box.Start.
type Config struct {
	Version int           `json:"version"` // set by box.Start
	ID      string        `json:"id"`
	Name    string        `json:"name,omitempty"` // in the environment as COPPICE_SANDBOX
	RunDir  string        `json:"run_dir"`        // absolute; holds keeper.sock, keeper.log and the mount point
	Spec    rootspec.Spec `json:"spec"`
	Tier    string        `json:"tier"` // "" is TierProcess
	// Runtime is the absolute path of the OCI runtime, in tier container.
	Runtime string `json:"runtime,omitempty"`
	// User is UserRoot, UserMe or a name in the sandbox's own /etc/passwd. If empty, it is UserMe on the
	// host's base, else UserRoot.
	User     string  `json:"user,omitempty"`
	HostBase bool    `json:"host_base,omitempty"`
	Net      string  `json:"net,omitempty"`    // "" is NetOff
	Phases   []Phase `json:"phases,omitempty"` // policies that the gate enforces; in tiers with a gate
	// Journal is the directory of the host to which gate and keeper write events and refusals. It is required in tiers
	// with a gate, and with decoys.
	Journal string `json:"journal,omitempty"`
	// JournalKey is the secret from which the journal's key is derived; see package journal.
	JournalKey []byte   `json:"journal_key,omitempty"`
	Hostname   string   `json:"hostname,omitempty"` // "" is Name
	Env        []string `json:"env,omitempty"`      // KEY=VALUE, for every command
	Limits     Limits   `json:"limits,omitzero"`
	// DiskBy names the mechanism that enforces Limits.Disk, which the creator of the root has set up; "" if none.
	DiskBy string `json:"disk_by,omitempty"`
	// KeepTmp keeps /tmp in the root, and so in the history; otherwise it is a tmpfs that ends with the box.
	KeepTmp bool   `json:"keep_tmp,omitempty"`
	Caller  Caller `json:"caller"`
	// Self mounts the run directory's SelfDir inside, at SelfAt.
	Self bool `json:"self,omitempty"`
	// Client shows the program coppice inside, at ClientAt: that of ImageClient. Not in tier workspace. With an Image, it
	// is set if and only if it was when the image was taken.
	Client bool `json:"client,omitempty"`
	// Strong refuses to start if a protection or limit holds less than it should: see Enforced.Lacks.
	Strong bool `json:"strong,omitempty"`
	// Require names the protections with which the sandbox has run before. A start that lacks one is refused:
	// see Enforced.Lost.
	Require []string `json:"require,omitempty"`
	// Known are the findings of earlier starts of the home. A start that finds less is refused: see Finding.
	Known []Finding `json:"known,omitempty"`
	// Trace records the programs that start; see wire.StartedProgram. Tier supervised always does.
	Trace bool `json:"trace,omitempty"`
	// Record is how many bytes of each stream of a command's output are recorded, at most MaxRecord; 0
	// records none. The total length is reported in any case.
	Record int64 `json:"record,omitempty"`
	// Hidden is the number of places in the base that Spec hides.
	Hidden int `json:"hidden,omitempty"`
	// HiddenAt are the paths that the policy hides, without links, at which a refused access is recorded; DIR/* means
	// what is in a directory.
	HiddenAt []string `json:"hidden_at,omitempty"`
	// Denials says whether refused accesses to files are recorded: DenialsAuto where that is cheap, which is in tier
	// gvisor, or DenialsNone. "" is DenialsNone.
	Denials string `json:"denials,omitempty"`
	// Access says what the sandbox can change, and which other files of the host it sees.
	Access rootspec.Access `json:"access,omitzero"`
	// Dirs are the default working directories of commands: the first that can be entered, else the user's
	// home. In tier workspace they are paths of the host.
	Dirs []string `json:"dirs,omitempty"`
	// Shared are directories of the host that are mounted read-only, each at rootspec.SharedPath of its
	// index; at most rootspec.MaxShared. Not in tier workspace.
	Shared []string `json:"shared,omitempty"`
	// Tokens are the parts of Access.Decoys that only a process that has opened a decoy can send. The gate, if there is
	// one, searches for them.
	Tokens []Token `json:"tokens,omitempty"`
	// OnTouch says how the keeper reacts when a decoy is opened, or a token is sent to the gate.
	OnTouch string `json:"on_touch,omitempty"`
	// Confine is ConfineOff, ConfineAuto or ConfineRequire: how tier workspace is confined. Places are what it needs of
	// the host if it is.
	Confine string `json:"confine,omitempty"`
	Places  Places `json:"places,omitzero"`
	// Secrets are the grants, in tiers whose gate inspects HTTPS.
	Secrets Secrets `json:"secrets,omitzero"`
	// Asks says whether Phases ask the user about destinations without a rule.
	Asks bool `json:"asks,omitempty"`
	// IdleAfter is how long a box lives without processes and without results that wait to be fetched. 0 means
	// DefaultIdle; a negative value means no limit.
	IdleAfter time.Duration `json:"idle_after,omitempty"`
	// Image is an absolute path of a directory with a memory image to resume, in tier gvisor. Nothing passes
	// the gate before Rekey.
	Image string `json:"image,omitempty"`
	// MemoryFacts are set by box.Start in tier gvisor: what must be equal where an image of the box's memory is
	// resumed.
	MemoryFacts map[string]string `json:"memory_facts,omitempty"`
	// Init is the absolute path of the program that is PID 1 in Image; "" means the keeper's own program. The box holds
	// a lock (flock) on it while it lives.
	Init string `json:"init,omitempty"`
	// ImageClient is the absolute path of the program coppice that the sandbox showed when Image was taken; "" means
	// the one that box.Start passes. The box holds a lock (flock) on it while it lives.
	ImageClient string `json:"image_client,omitempty"`
	// NoCgroup makes the box run without control groups even if they can be created.
	NoCgroup bool `json:"no_cgroup,omitempty"`
	// NoIDMap keeps the ids of the initial user namespace for real root even if they could be shifted.
	NoIDMap bool `json:"no_idmap,omitempty"`
}

// The values of Config.Denials.
const (
	DenialsAuto = "auto"
	DenialsNone = "none"
)

// MaxRecord is the maximum of Config.Record. It equals policy.MaxOutput, which is not imported here because
// the processes of a box would then initialize everything that a policy's reader needs.
const MaxRecord = 1 << 20

// Token is a token of a decoy.
type Token struct {
	Path string `json:"path"` // of the decoy, inside
	Text string `json:"text"`
}

// TouchStop is the Config.OnTouch that makes the keeper kill all processes. Any other value only reports the
// touch.
const TouchStop = "stop"

// Gated reports whether the gate is the box's only network.
func (c Config) Gated() bool {
	return c.Tier == TierSupervised || c.Tier == TierContainer || c.Tier == TierGvisor || c.Entered()
}

// Entered reports whether the box is a locked workspace with a gate, which has no packets: connections of commands
// enter the gate through sockets of init.
func (c Config) Entered() bool { return c.Locked() && c.Net == NetRules }

// EntranceDir is the directory of the host for such connections, which is closed to commands.
func (c Config) EntranceDir() string { return filepath.Join(c.RunDir, lockEntrance) }

// Conducted reports whether a conductor starts PID 1 of the box: init is then a process below the one that the keeper
// starts.
func (c Config) Conducted() bool { return c.Tier == TierContainer || c.Tier == TierGvisor }

// GateWaits reports whether the gate starts only when the box sends a packet: its one policy has the network off, and
// the inside need not trust it.
func (c Config) GateWaits() bool {
	return !c.Secrets.Needed() && c.Gated() && c.Confined() && c.Tier != TierGvisor &&
		c.Net == NetOff && len(c.Phases) == 1
}

// Confined reports whether the box has namespaces and its own root.
func (c Config) Confined() bool { return c.Tier != TierWorkspace }

// Phase is a policy with an end time. The phases of a box are sorted by their ends, and the last has none.
type Phase struct {
	Policy string    `json:"policy"`         // as from policy.Policy.Canonical
	Digest string    `json:"digest"`         // as from policy.Policy.Digest; any other is refused
	Until  time.Time `json:"until,omitzero"` // zero is no end
}

// SelfDir is where the outside listens for requests from the inside, and SelfAt where it is mounted. It is a directory,
// not a socket, so that the listener can create the socket again; the socket's own name inside is a link.
const (
	SelfDir    = "self"              // in the run directory
	SelfName   = "sock"              // in SelfDir
	SelfUser   = "user"              // in SelfDir, in tier gvisor: for connections of the sandbox's user
	SelfAt     = "/run/coppice"      // mount point of SelfDir, read-only
	SelfSocket = "/run/coppice.sock" // the link
)

// ClientAt is the path of the program coppice in a sandbox: see Config.Client.
const ClientAt = rootspec.ClientDir + "/coppice"

// ContainedPath is the path of coppice-init in the container that a runtime starts in tier container, and its argv[0]
// as PID 1 there. Init then leaves that root for the sandbox's.
const ContainedPath = "/run/coppice-contained"

// InnerPath is the path of coppice-init in a sandbox of tier gvisor, and its argv[0] as PID 1 there.
const InnerPath = "/run/coppice-init"

// DefaultIdle is the default of Config.IdleAfter.
const DefaultIdle = 30 * time.Second

// Caller is the daemon's identity on the host. A daemon that is not real root runs as uid 0 of a user
// namespace that maps only that id; where the host allows no such namespace, it is Unmapped.
type Caller struct {
	Root bool `json:"root,omitempty"` // real root; the ids below are then 0
	// Unmapped says that the daemon is not real root, and has the ids below itself. Then only tier workspace works.
	Unmapped bool `json:"unmapped,omitempty"`

	UID   uint32 `json:"uid"`
	GID   uint32 `json:"gid"`
	Name  string `json:"name,omitempty"`
	Home  string `json:"home,omitempty"`
	Shell string `json:"shell,omitempty"`
}

// Limits are the limits of a sandbox; 0 means no limit.
type Limits struct {
	Memory    int64 `json:"memory,omitempty"` // bytes
	Pids      int64 `json:"pids,omitempty"`
	Disk      int64 `json:"disk,omitempty"`       // bytes
	MilliCPUs int64 `json:"milli_cpus,omitempty"` // thousandths of a processor
	TimeMS    int64 `json:"time_ms,omitempty"`    // of one command
	Output    int64 `json:"output,omitempty"`     // bytes, of one command
	Files     int64 `json:"files,omitempty"`      // open files of one process
}

// The states of an Item.
const (
	On   = "on"
	Off  = "off"
	Weak = "weak" // in force, but with less than it should have; Detail says why
)

// Item is one protection and the state in which it was set up.
type Item struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
}

// Counts is the name of the limit on what the kernel counts for the owner of a user namespace.
const Counts = "kernel counts"

// ClientItem is the name of the item for a sandbox that should show the program coppice and does not.
const ClientItem = "coppice"

// FileDenials is the name of the item that says whether refused accesses to files are recorded.
const FileDenials = "file denials"

// Descriptors is the name of the item for an init that may open too few files to find the parent of each program.
const Descriptors = "descriptors"

// Enforced lists the protections of a started box.
type Enforced struct {
	Tier  string `json:"tier"`
	User  string `json:"user"` // name (uid:gid) inside
	Items []Item `json:"items"`
	// Quiet names protections that have an item only if they are weak or off.
	Quiet []string `json:"quiet,omitempty"`
	// Found is what the start found out about the host.
	Found []Finding `json:"found,omitempty"`
}

// State returns the state of the named protection, or "".
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

// Bounded returns e with its details, which may contain text of a sandbox, truncated so that e fits into a frame of the
// keeper and a record of the audit log. No item is omitted.
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

// notWalls are the items that confine nothing: weaker ones are only less convenient.
var notWalls = []string{"attributes", ClientItem, "denials", FileDenials, "freeze", "pipes", "programs", "renames"}

// Lacks returns the protections and limits that hold less than they should: those that are weak, and limits
// that nothing enforces. Others are off because they were not requested, or because another protection
// replaces them.
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

// Guest is the configuration of init.
type Guest struct {
	Version  int      `json:"version"`
	Tier     string   `json:"tier"`
	Dirs     []string `json:"dirs,omitempty"` // default working directories: see Config.Dirs
	Hostname string   `json:"hostname,omitempty"`
	User     User     `json:"user"`
	Env      []string `json:"env"` // of every command, complete
	Caps     []uint   `json:"caps,omitempty"`
	Loopback bool     `json:"loopback,omitempty"` // set lo up
	Netlink  bool     `json:"netlink,omitempty"`
	Tmp      bool     `json:"tmp,omitempty"`    // tmpfs on /tmp
	Memory   int64    `json:"memory,omitempty"` // limit of a tmpfs, in bytes; 0 is the kernel's default
	Resolv   []byte   `json:"resolv,omitempty"` // for /etc/resolv.conf; nil leaves it unchanged
	CA       []byte   `json:"ca,omitempty"`     // PEM of the gate's authority; nil leaves the trust stores unchanged
	Emulate  bool     `json:"emulate,omitempty"`
	Promote  bool     `json:"promote,omitempty"`
	Trace    bool     `json:"trace,omitempty"`    // record the programs that are started
	Tell     bool     `json:"tell,omitempty"`     // report refused system calls
	Denials  bool     `json:"denials,omitempty"`  // tier gvisor: report refused files; requires Tell
	Hidden   []string `json:"hidden,omitempty"`   // with Denials: see Config.HiddenAt
	Landlock bool     `json:"landlock,omitempty"` // apply Landlock scopes
	PidMax   int      `json:"pid_max,omitempty"`  // of the pid namespace; 0 leaves it unchanged
	Tasks    bool     `json:"tasks,omitempty"`    // tasks are limited, including init's
	NProc    uint64   `json:"nproc,omitempty"`    // RLIMIT_NPROC; 0 leaves it unchanged
	Data     uint64   `json:"data,omitempty"`     // RLIMIT_DATA; 0 leaves it unchanged
	Files    uint64   `json:"files,omitempty"`    // RLIMIT_NOFILE of commands, but not of init; 0 leaves it unchanged
	Shared   int      `json:"shared,omitempty"`   // number of trees in the setup to mount at rootspec.SharedPath
	Client   bool     `json:"client,omitempty"`   // mount the next descriptor of the setup at ClientAt
	Self     bool     `json:"self,omitempty"`     // mount the next descriptor of the setup at SelfAt
	Outside  bool     `json:"outside,omitempty"`  // the keeper freezes, by init's control group
	Runtime  string   `json:"runtime,omitempty"`  // tier container: the name of the OCI runtime
	Resume   bool     `json:"resume,omitempty"`   // tier gvisor: a memory image is sent with the setup
	Gate     bool     `json:"gate,omitempty"`     // tier gvisor: the end of the gate's link is sent with the setup
	// Regions say which files init may mount over: see rootspec.MayCover.
	Regions []rootspec.Region `json:"regions,omitempty"`
	// Decoys is the device of the decoys: see rootspec.Files; 0 in tier gvisor, where init sees other devices.
	Decoys uint64 `json:"decoys,omitempty"`
	// Fixed lists, in tier gvisor, the mount points of the policy; neither they nor their parents may be moved.
	Fixed []string `json:"fixed,omitempty"`
	// Lock confines commands of tier workspace; nil confines nothing there.
	Lock *Lock `json:"lock,omitempty"`
	// Java are Java trust stores with the gate's authority added, to mount over the sandbox's.
	Java []JavaStore `json:"java,omitempty"`
}

// SingleID reports whether only one uid is mapped.
func SingleID(m []IDMap) bool { return len(m) == 1 && m[0].Size == 1 }

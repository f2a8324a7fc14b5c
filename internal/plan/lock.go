package plan

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
)

// The values of Config.Confine.
const (
	ConfineOff     = "off"     // commands of tier workspace can do what the daemon's user can; "" is the same
	ConfineAuto    = "auto"    // the walls of Lock, as far as the host has them
	ConfineRequire = "require" // the same, and no start without one of them
)

// Confinement is the name of the item that says how tier workspace is confined. It is never On: the sandbox has the
// namespaces and the user of the host.
const Confinement = "confinement"

// leastLandlock is the ABI of Landlock that restricts every change of a file's content (Linux 6.2).
const leastLandlock = 3

// scopes is the ABI of Landlock with scopes for signals and abstract sockets (Linux 6.12).
const scopes = 6

// Places are what a sandbox of tier workspace needs of the host when it is locked. All paths are absolute.
type Places struct {
	// Closed are directories in which Lock opens nothing, even if they are in one of the system's directories, except for
	// the other fields and the sandbox's own directories.
	Closed []string `json:"closed,omitempty"`
	// Homes are home directories of the user, which are closed as well.
	Homes []string `json:"homes,omitempty"`
	// Read can be read and executed, including everything below. Neither it nor Write may lead through a link.
	Read []string `json:"read,omitempty"`
	// Write can be changed as well, except that no device can be made there.
	Write []string `json:"write,omitempty"`
}

// Lock says how init confines the commands of tier workspace, which have no namespaces.
type Lock struct {
	Places
	// Landlock is the ABI version of the host's Landlock; 0 is none, and then no path is restricted.
	Landlock int `json:"landlock,omitempty"`
	// System are the system's directories that can be read and executed, and Seen those that can only be read.
	System []string `json:"system,omitempty"`
	Seen   []string `json:"seen,omitempty"`
	// Devices can be read and written.
	Devices []string `json:"devices,omitempty"`
	// Own are the directories of the sandbox, which commands can change: its tree, Home and Tmp.
	Own []string `json:"own,omitempty"`
	// Home and Tmp belong to the sandbox. Init makes Home, and empties Tmp.
	Home string `json:"home"`
	Tmp  string `json:"tmp"`
	// Links are those that init makes in Home, to what is open of the user's.
	Links []Link `json:"links,omitempty"`
	// NoInet refuses Internet sockets.
	NoInet bool `json:"no_inet,omitempty"`
	// Inet is a directory of the sandbox with the listeners of its gate, which is closed to commands. If it is set,
	// commands get Unix sockets for those of the Internet, which init connects there, or to ports of the sandbox itself.
	// NoInet must be set too. See notify.Inet for what it contains; init empties the directory of ports.
	Inet string `json:"inet,omitempty"`
	// Require makes it an error that the host lacks a filter for system calls.
	Require bool `json:"require,omitempty"`
}

// Link is a symbolic link.
type Link struct {
	Name string `json:"name"` // relative to the directory in which it is
	To   string `json:"to"`
}

// Names of the sandbox's own directories in its run directory, in tier workspace.
const (
	lockHome = "home"
	lockTmp  = "tmp"

	lockEntrance = "entrance"
)

// The directories of the host that a locked sandbox sees. Home directories, /tmp, /var and other sandboxes are not
// among them, and of /run and /var only what resolvers, certificates and package managers need.
var (
	lockSystem = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/gnu"}
	lockSeen   = []string{"/etc", "/proc", "/sys", "/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager",
		"/var/lib/ca-certificates", "/var/lib/dpkg"}
	// Other terminals in /dev/pts are not among them: those of the user's own sessions are there too.
	lockDevices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx",
		"/dev/pts/ptmx"}
)

// Locked reports whether the box is a locked workspace.
func (c Config) Locked() bool {
	return c.Tier == TierWorkspace && (c.Confine == ConfineAuto || c.Confine == ConfineRequire)
}

// lockHome is the home directory of a locked workspace.
func (c Config) lockHome() string { return filepath.Join(c.RunDir, lockHome) }

// lockTmp is the TMPDIR of a locked workspace.
func (c Config) lockTmp() string { return filepath.Join(c.RunDir, lockTmp) }

// lock plans a locked workspace, for commands of a user whose home directory on the host is home.
func (d *deciding) lock(home string) error {
	c, abi := d.config, d.facts.Landlock
	if c.Confine == ConfineRequire && abi < scopes {
		return fault.New(fault.Unsupported, "cannot confine tier workspace as confine: require says: %s",
			landlockLack(abi)).
			WithHint("use --confine auto, or another host: coppice system probe")
	}
	l := &Lock{
		Places: c.Places, Landlock: abi, System: lockSystem, Seen: lockSeen, Devices: lockDevices,
		Home: c.lockHome(), Tmp: c.lockTmp(), NoInet: c.Net != NetHost, Require: c.Confine == ConfineRequire,
	}
	l.Own = []string{c.Spec.Bind, l.Home, l.Tmp}
	l.Homes = slices.DeleteFunc(append([]string{home}, c.Places.Homes...), func(dir string) bool { return dir == "/" })
	l.Closed = slices.Concat(l.Homes, c.Places.Closed)
	l.Links = linksTo(slices.Concat(c.Places.Read, c.Places.Write), l.Homes)
	d.guest.Lock = l
	d.guest.Tell = c.Journal != ""
	if d.guest.Tell {
		d.enforced.Quiet = append(d.enforced.Quiet, toldCalls)
	}
	d.add(Confinement, Weak, "locked: the walls below, without namespaces; ids, processes, shared memory and limits are "+
		"those of the host's user")
	d.paths(abi)
	d.add("system calls", On, "the filter of tier process; no new privileges")
	switch {
	case c.Net == NetHost:
		d.add("net", Off, "the host's network")
	case c.Entered():
		d.add("net", On, "the gate: what the policy allows, by name; commands have no Internet sockets, and separate "+
			"ports on loopback")
		l.Inet = c.EntranceDir()
		d.gate()
	default:
		d.add("net", On, "no Internet sockets, not even for loopback")
	}
	return nil
}

// linksTo returns links, relative to a home directory, to those of paths that are below one of homes.
func linksTo(paths, homes []string) (links []Link) {
	for _, p := range paths {
		for _, home := range homes {
			if rel, err := filepath.Rel(home, p); err == nil && filepath.IsLocal(rel) && rel != "." {
				links = append(links, Link{rel, p})
				break
			}
		}
	}
	return links
}

// paths adds what Landlock restricts.
func (d *deciding) paths(abi int) {
	const seen = "the system's directories can be read, the sandbox's own and TMPDIR changed"
	switch {
	case abi == 0:
		d.add(HostFiles, Off, landlockLack(abi)+": commands can read and change what you can")
	case abi < leastLandlock:
		d.add(HostFiles, Weak, seen+"; files that are seen can be truncated: "+landlockLack(abi))
	default:
		d.add(HostFiles, On, seen)
	}
	if abi > 0 {
		d.add("metadata", Weak, "modes, times and attributes of your other files can be changed, and their names tried")
		d.add("unix sockets", On, "connections only to those in the sandbox's directories; no datagrams")
	}
	if abi >= scopes {
		d.add("signals", On, "only to processes of the sandbox")
	} else {
		d.add("signals", Off, landlockLack(abi)+": every process of the user can be signalled")
	}
}

// landlockLack says what a host with an ABI of Landlock lacks.
func landlockLack(abi int) string {
	if abi == 0 {
		return "the host has no Landlock (Linux 5.13)"
	}
	return fmt.Sprintf("the host has Landlock ABI %d, and ABI %d is needed (Linux 6.12)", abi, scopes)
}

// HostFiles is the name of the item for the files of the host in a locked workspace.
const HostFiles = "host files"

package plan

import (
	"hash/fnv"
	"math"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
)

// ShiftSize is the number of ids that a sandbox with shifted ids has.
const ShiftSize = 1 << 16

// ShiftFor returns the host id of id 0 in the sandbox with the given ID. The range is one that neither
// distributions, systemd nor subordinate ids use (systemd, UIDS-GIDS.md: 1879048192 and up are unused). Two
// sandboxes may share a range: namespaces isolate them, not ids.
func ShiftFor(id string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	return 0x70000000 + h.Sum32()%0xffe<<16
}

// MapsKnown reports whether the result of Maps does not depend on Facts.Passwd.
func MapsKnown(c Config) bool {
	return c.Caller.Root || c.User == "" || c.User == UserRoot || c.User == UserMe
}

// Maps returns the uid and gid maps of the sandbox's user namespace.
func Maps(c Config, f Facts) (uids, gids []IDMap, err error) {
	switch {
	case c.Caller.Root && f.Shift != 0:
		all := []IDMap{{0, f.Shift, ShiftSize}}
		return all, all, nil
	case c.Caller.Root, c.Caller.Unmapped && !c.Confined(): // no user namespace, or one with all ids
		all := []IDMap{{0, 0, math.MaxUint32}}
		return all, all, nil
	}
	u, err := Identity(c, f)
	return []IDMap{{u.UID, 0, 1}}, []IDMap{{u.GID, 0, 1}}, err
}

// Outside returns the id outside the user namespace of an id inside it. ok is false if the id is not mapped.
func Outside(maps []IDMap, inside uint32) (id uint32, ok bool) {
	for _, m := range maps {
		if inside >= m.Inside && inside-m.Inside < m.Size {
			return m.Outside + (inside - m.Inside), true
		}
	}
	return 0, false
}

// Identity returns the user that commands run as. A user name is looked up only in the sandbox's own passwd. In tier
// workspace it is the daemon's user, whatever c.User is: commands are processes of the host.
func Identity(c Config, f Facts) (u User, err error) {
	want := c.User
	switch {
	case c.Tier == TierWorkspace, want == "" && c.HostBase:
		want = UserMe
	case want == "":
		want = UserRoot
	}
	users := ParsePasswd(f.Passwd)
	byID := func(id uint32) (User, bool) {
		i := slices.IndexFunc(users, func(u User) bool { return u.UID == id })
		if i < 0 {
			return User{}, false
		}
		return users[i], true
	}
	switch want {
	case UserRoot:
		u, _ = byID(0)
		u.Name, u.UID, u.GID = "root", 0, 0
	case UserMe:
		var known bool
		hosts := c.HostBase || c.Tier == TierWorkspace // otherwise the user's home need not exist in the sandbox
		switch u, known = byID(c.Caller.UID); {
		case !known && hosts:
			u = User{Name: c.Caller.Name, Home: c.Caller.Home, Shell: c.Caller.Shell}
		case !known:
			u = User{Name: c.Caller.Name}
		case hosts && u.Home == "/": // podman's entry for the user of a container
			u.Home = c.Caller.Home
		}
		u.UID, u.GID = c.Caller.UID, c.Caller.GID
	default:
		i := slices.IndexFunc(users, func(u User) bool { return u.Name == want })
		if i < 0 {
			return u, fault.New(fault.NotFound, "user %q not found in the sandbox's /etc/passwd", want).
				WithHint("use root or me, or create the user first: coppice create --user root, then useradd %s", want)
		}
		u = users[i]
	}
	u = u.complete()
	if c.Tier == TierContainer && !c.Caller.Root && u.UID != 0 {
		if u, err = containerRoot(c, u); err != nil {
			return u, err
		}
	}
	if c.Caller.Root {
		u.Groups = ParseGroups(f.Group, u.Name)
	}
	return u, nil
}

// containerRoot returns the user in tier container where only one id is mapped and u would not be root: OCI runtimes
// start no container without id 0. In place of the daemon's user, commands are root, with that user's home.
func containerRoot(c Config, u User) (User, error) {
	if c.User != "" && c.User != UserMe {
		return u, fault.New(fault.Unsupported, "tier container has only user root, as the daemon is not real root: "+
			"not %s (%d)", u.Name, u.UID).WithHint("use --user me or root, or --tier supervised")
	}
	u.Name, u.UID, u.GID = "root", 0, 0
	return u, nil
}

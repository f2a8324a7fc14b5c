package rootfs

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Look has the owner and mode of a directory that represents one of the host.
type Look struct {
	Mode     uint32 // the low 12 bits
	UID, GID uint32 // as the caller sees them; the caller may set them
	Mtime    time.Time
}

// LookOf returns the owner and mode for a directory that represents dir, as copyDirMeta sets them: dir's owner if it
// can be set, and otherwise the caller's access to dir. It omits extended attributes.
func LookOf(dir string) (Look, error) {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return Look{}, fault.Wrap(err, "inspect %s", dir)
	}
	l := Look{Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, Mtime: time.Unix(st.Mtim.Unix())}
	if mayGive("uid", st.Uid) && mayGive("gid", st.Gid) {
		return l, nil
	}
	if uid := unix.Geteuid(); int(st.Uid) != uid {
		l.UID, l.Mode = uint32(uid), l.Mode&^0o700|access(dir)<<6
	}
	l.GID = uint32(unix.Getegid())
	return l, nil
}

// mayGive reports whether the caller can set an ID as the owner of files: as root it can set all mapped IDs. IDs that
// are not mapped appear as 65534.
func mayGive(kind string, id uint32) bool {
	if unix.Geteuid() != 0 {
		return false
	}
	for _, m := range idMaps()[kind] {
		if id >= m.first && id-m.first < m.count {
			return true
		}
	}
	return false
}

type idRange struct{ first, count uint32 }

// idMaps parses /proc/self/uid_map and gid_map, which never change after they were written.
var idMaps = sync.OnceValue(func() map[string][]idRange {
	out := map[string][]idRange{}
	for _, kind := range []string{"uid", "gid"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/self/%s_map", kind))
		if err != nil {
			continue // then no ID can be set
		}
		for sc := bufio.NewScanner(strings.NewReader(string(text))); sc.Scan(); {
			w := strings.Fields(sc.Text())
			if len(w) != 3 {
				continue
			}
			first, err1 := strconv.ParseUint(w[0], 10, 32)
			count, err2 := strconv.ParseUint(w[2], 10, 32)
			if err1 == nil && err2 == nil {
				out[kind] = append(out[kind], idRange{uint32(first), uint32(count)})
			}
		}
	}
	return out
})

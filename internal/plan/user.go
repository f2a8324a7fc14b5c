package plan

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// User is an identity inside a sandbox.
type User struct {
	Name   string   `json:"name"`
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"` // supplementary
	Home   string   `json:"home"`
	Shell  string   `json:"shell"`
}

// ParsePasswd parses passwd(5). It skips malformed lines: the file belongs to the sandbox, and one bad line
// must not lock its user out.
func ParsePasswd(b []byte) []User {
	var users []User
	for line := range bytes.Lines(b) {
		f := strings.Split(strings.TrimSpace(string(line)), ":")
		if len(f) != 7 || f[0] == "" {
			continue
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		users = append(users, User{Name: f[0], UID: uint32(uid), GID: uint32(gid), Home: f[5], Shell: f[6]})
	}
	return users
}

// ParseGroups parses group(5) and returns the ids of the groups that have name as a member.
func ParseGroups(b []byte, name string) []uint32 {
	var ids []uint32
	for line := range bytes.Lines(b) {
		f := strings.Split(strings.TrimSpace(string(line)), ":")
		if len(f) != 4 || !slices.Contains(strings.Split(f[3], ","), name) {
			continue
		}
		if id, err := strconv.ParseUint(f[2], 10, 32); err == nil && !slices.Contains(ids, uint32(id)) {
			ids = append(ids, uint32(id))
		}
	}
	return ids
}

// complete returns u with defaults for empty fields.
func (u User) complete() User {
	if !strings.HasPrefix(u.Home, "/") {
		u.Home = "/"
		if u.UID == 0 {
			u.Home = "/root"
		}
	}
	if !strings.HasPrefix(u.Shell, "/") {
		u.Shell = "/bin/sh"
	}
	if u.Name == "" {
		u.Name = strconv.FormatUint(uint64(u.UID), 10)
	}
	return u
}

package repo

import (
	"net/url"
	"path/filepath"
	"slices"
	"strings"
)

// configLine is one line of the user's configuration.
type configLine struct {
	scope string // system, global, local, worktree
	key   string // section and key in lower case; the subsection unchanged
	value string
	bare  bool // the line has no value, which means "true"
}

// formatOf returns the object format of a repository with this configuration.
func formatOf(lines []configLine) Format {
	f := SHA1
	for _, l := range lines {
		if l.key == "extensions.objectformat" && l.scope == "local" {
			f = Format(l.value)
		}
	}
	return f
}

// carries are the settings of a repository's configuration that are copied, and how. Others are not: they could
// contain a secret, or name a program.
var carries = []carried{
	{section: "core",
		keys: "filemode ignorecase symlinks autocrlf eol safecrlf quotepath precomposeunicode whitespace abbrev " +
			"commentchar logallrefupdates bigfilethreshold compression"},
	{section: "core", keys: "hookspath", take: inTree},
	{section: "user", keys: "name email"},
	{section: "author", keys: "name email"},
	{section: "committer", keys: "name email"},
	{section: "i18n", keys: "commitencoding logoutputencoding"},
	{section: "commit", keys: "cleanup status verbose"},
	{section: "merge",
		keys: "ff log conflictstyle renames renamelimit directoryrenames renormalize stat autostash verbosity"},
	{section: "rebase",
		keys: "autosquash autostash stat backend updaterefs missingcommitscheck abbreviatecommands rebasemerges forkpoint"},
	{section: "pull", keys: "ff rebase"},
	{section: "push", keys: "default autosetupremote followtags"},
	{section: "fetch", keys: "prune prunetags"},
	{section: "rerere", keys: "enabled autoupdate"},
	{section: "diff",
		keys: "algorithm context interhunkcontext renames renamelimit noprefix mnemonicprefix colormoved colormovedws " +
			"submodule ignoresubmodules indentheuristic wserrorhighlight"},
	{section: "submodule", keys: "recurse active fetchjobs propagatebranches"},
	{section: "submodule", of: true, keys: "branch active ignore fetchrecursesubmodules"},
	{section: "submodule", of: true, keys: "update", take: noCommand},
	{section: "submodule", of: true, keys: "url", take: address},
	{section: "remote", of: true, keys: "url pushurl", take: address},
	{section: "remote", of: true, keys: "fetch push tagopt prune prunetags"},
	{section: "remote", keys: "pushdefault"},
	{section: "branch", of: true, keys: "remote pushremote merge rebase description"},
	{section: "branch", keys: "autosetupmerge autosetuprebase sort"},
}

// carried are the copied keys of a section.
type carried struct {
	section string
	of      bool   // of something that the section is about: remote.NAME.url
	keys    string // with spaces between them
	take    func(value string) (string, bool)
}

// parts splits a key: section, subsection, name.
func (l *configLine) parts() (section, of, name string) {
	first, last := strings.IndexByte(l.key, '.'), strings.LastIndexByte(l.key, '.')
	if first == last {
		return l.key[:max(first, 0)], "", l.key[last+1:]
	}
	return l.key[:first], l.key[first+1 : last], l.key[last+1:]
}

// allowed returns the lines that are copied. With identity, it also copies the name and address from a
// configuration that the sandbox does not see, the nearest one. git does not change a duplicate key.
func allowed(lines []configLine, identity bool) []configLine {
	var all []configLine
	for _, l := range lines {
		whose := identity && (l.key == "user.name" || l.key == "user.email")
		if l.scope != "local" && l.scope != "worktree" && (!whose || l.scope == "command") {
			continue
		}
		if l, ok := l.carry(); ok {
			if whose {
				all = slices.DeleteFunc(all, func(o configLine) bool { return o.key == l.key })
			}
			all = append(all, l)
		}
	}
	return all
}

// carry returns the line as it is copied, or false.
func (l configLine) carry() (configLine, bool) {
	section, of, name := l.parts()
	for _, c := range carries {
		if c.section != section || c.of != (of != "") || !slices.Contains(strings.Fields(c.keys), name) {
			continue
		}
		if c.take == nil {
			return l, true
		}
		value, ok := c.take(l.value)
		l.value = value
		return l, ok
	}
	return l, false
}

// inTree accepts only paths in the work tree, or in .git.
func inTree(v string) (string, bool) { return v, filepath.IsLocal(v) }

// noCommand accepts a way to update a submodule that is not a program.
func noCommand(v string) (string, bool) { return v, !strings.HasPrefix(strings.TrimSpace(v), "!") }

// address returns the address of a repository without credentials. One that runs a program is refused.
func address(v string) (string, bool) {
	if strings.Contains(v, "::") && !strings.ContainsAny(before(v, "::"), "/[@") {
		return "", false
	}
	if !strings.Contains(v, "://") {
		return v, true // a path, or HOST:PATH of ssh
	}
	u, err := url.Parse(v)
	if err != nil {
		return "", false
	}
	switch {
	case u.User == nil:
	case u.Scheme == "ssh" || u.Scheme == "git+ssh" || u.Scheme == "ssh+git":
		u.User = url.User(u.User.Username()) // a user name is not secret, and git@ is needed
	default:
		u.User = nil
	}
	u.RawQuery, u.Fragment, u.RawFragment, u.ForceQuery = "", "", "", false
	return u.String(), true
}

func before(s, sep string) string {
	s, _, _ = strings.Cut(s, sep)
	return s
}

// configText returns the configuration of a repository inside a sandbox.
func configText(f Format, moved bool, lines []configLine) string {
	ours := []configLine{{key: "core.repositoryformatversion", value: "0"}, {key: "core.bare", value: "false"}}
	if f == SHA256 {
		ours[0].value = "1"
		ours = append(ours, configLine{key: "extensions.objectformat", value: "sha256"})
	}
	// Layers use hard links, which change the ctime of inodes.
	last := []configLine{{key: "core.trustctime", value: "false"}}
	if moved {
		last = append(last, configLine{key: "core.checkstat", value: "minimal"})
	}
	var b strings.Builder
	at := ""
	for _, l := range slices.Concat(ours, lines, last) {
		section, of, name := l.parts()
		if of != "" {
			section += ` "` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(of) + `"`
		}
		if section != at {
			b.WriteString("[" + section + "]\n")
			at = section
		}
		b.WriteString("\t" + name)
		if !l.bare {
			b.WriteString(` = "` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`, "\b", `\b`).
				Replace(l.value) + `"`)
		}
		b.WriteString("\n")
	}
	return b.String()
}

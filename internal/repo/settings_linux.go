package repo

import "strconv"

// setting is a line of configuration for every git process that Coppice starts, with the reason. It overrides all
// configuration files.
type setting struct{ key, value, why string }

// always are the settings for every git process, also in the user's own repository.
var always = []setting{
	{"core.hooksPath", "/dev/null", "no hook runs, of any author"},
	{"core.fsmonitor", "false", "a program that git starts to ask what changed"},
	{"core.untrackedCache", "keep", "the index is not changed in passing"},
	{"core.alternateRefsCommand", "false", "a program"},
	{"core.protectHFS", "true", "names that are .git on other file systems are refused"},
	{"core.protectNTFS", "true", "the same"},
	{"core.fsync", "all", "what is acknowledged is on the disk"},
	{"core.fsyncMethod", "fsync", "the same"},
	{"protocol.allow", "never", "nothing is fetched or sent, by any transport"},
	{"gc.auto", "0", "nothing is started in the background"},
	{"maintenance.auto", "false", "the same"},
	{"submodule.recurse", "false", "repositories within are left alone"},
	{"fetch.recurseSubmodules", "false", "the same"},
	{"diff.external", "", "a program"},
	{"core.pager", "cat", "a program"},
	{"core.editor", "false", "a program"},
	{"core.askPass", "false", "a program"},
	{"core.sshCommand", "false", "a program"},
	{"credential.helper", "", "programs"},
	{"commit.gpgSign", "false", "a program"},
	{"log.showSignature", "false", "a program"},
	{"advice.graftFileDeprecated", "false", "only noise"},
}

// atDesk are further settings for git on a sandbox's data. Only these and the desk's own configuration apply
// there.
var atDesk = []setting{
	{"core.attributesFile", "/dev/null", "no attributes, so no filter, textconv, diff or merge driver"},
	{"core.excludesFile", "/dev/null", "nothing is ignored that we did not ask for"},
	{"core.symlinks", "true", "links are links"},
	{"core.fileMode", "true", "modes are modes"},
	{"core.ignoreCase", "false", "names are bytes"},
	{"core.precomposeUnicode", "false", "the same"},
	{"core.autocrlf", "false", "content is bytes"},
	{"core.quotePath", "true", "names in patches have no control bytes"},
	{"core.bigFileThreshold", "32m", "large files are streamed, never held"},
	{"core.packedGitWindowSize", "32m", "packs are mapped in pieces"},
	{"core.packedGitLimit", "512m", "and not many at a time"},
	{"pack.threads", "2", "bounded"},
	{"pack.windowMemory", "64m", "bounded"},
	{"core.deltaBaseCacheLimit", "64m", "bounded"},
	{"diff.renameLimit", "1000", "the work for renames is bounded"},
	{"merge.renameLimit", "1000", "the same"},
	{"merge.directoryRenames", "false", "files are put only where they were written"},
	{"diff.noprefix", "false", "patches look the same for everybody"},
	{"diff.mnemonicPrefix", "false", "the same"},
	{"fastimport.unpackLimit", "1", "one pack, not many files"},
}

// cleanEnv is the base environment of every process. It inherits nothing from the daemon.
func cleanEnv() []string {
	return []string{
		"LC_ALL=C", "LANGUAGE=C", "TZ=UTC",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1",
		"HOME=/nonexistent", "XDG_CONFIG_HOME=/nonexistent", "PATH=/usr/bin:/bin",
	}
}

// commonEnv is the environment for both desks and the user's repository: no prompts, no network, literal paths.
func commonEnv() []string {
	return []string{
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=false", "SSH_ASKPASS=false", "GIT_SSH_COMMAND=false", "GIT_EDITOR=false",
		"GIT_PAGER=cat",
		"GIT_ALLOW_PROTOCOL=none", "GIT_PROTOCOL_FROM_USER=0", "GIT_NO_LAZY_FETCH=1", "GIT_OPTIONAL_LOCKS=0",
		"GIT_LITERAL_PATHSPECS=1", "GIT_NO_REPLACE_OBJECTS=1", "GIT_ADVICE=0", "GIT_MERGE_AUTOEDIT=no",
	}
}

// settings encodes lists of settings as environment variables, which override every file.
func settings(lists ...[]setting) []string {
	var env []string
	n := 0
	for _, list := range lists {
		for _, s := range list {
			env = append(env, "GIT_CONFIG_KEY_"+strconv.Itoa(n)+"="+s.key, "GIT_CONFIG_VALUE_"+strconv.Itoa(n)+"="+s.value)
			n++
		}
	}
	return append(env, "GIT_CONFIG_COUNT="+strconv.Itoa(n))
}

// deskEnv is the environment of git at a desk.
func deskEnv(dir string, more ...setting) []string {
	return append(append(append(cleanEnv(), commonEnv()...), settings(always, atDesk, more)...), "GIT_DIR="+dir)
}

// userEnv is the environment of git in the user's repository: the user's configuration applies, except for what
// always overrides.
func (g *Git) userEnv() []string {
	env := []string{"LC_ALL=C", "LANGUAGE=C", "HOME=" + g.user.Home, "PATH=" + g.user.Path}
	if g.user.Config != "" {
		env = append(env, "XDG_CONFIG_HOME="+g.user.Config)
	}
	return append(append(env, commonEnv()...), settings(always)...)
}

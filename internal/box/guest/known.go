//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// The files of OpenSSH for all users, and the setting that names such files. A setting that comes first wins.
const (
	sshConfig  = "/etc/ssh/ssh_config"
	sshSetting = "GlobalKnownHostsFile"
)

// sshKnown are files of hosts that OpenSSH knows.
var sshKnown = []string{"/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"}

// mountKnownHosts makes OpenSSH trust the gate as a server, by mounts over the files that exist: a new file would be in
// the history. Without any configuration for all users, there is most likely no OpenSSH.
func (t truster) mountKnownHosts(ca []byte) error {
	line := plan.KnownHosts(ca)
	if line == nil {
		return nil
	}
	if err := os.WriteFile(plan.SSHHosts, line, 0o644); err != nil {
		return fault.Wrap(err, "write %s", plan.SSHHosts)
	}
	for _, name := range sshKnown {
		ours := filepath.Join(plan.TrustDir, filepath.Base(name)+".pem")
		if _, err := t.lay(name, ours, func(have []byte) []byte { return withKnownHosts(have, line) }); err != nil {
			return err
		}
	}
	_, err := t.lay(sshConfig, filepath.Join(plan.TrustDir, "ssh_config"), withSSHConfig)
	return err
}

// withKnownHosts returns the known hosts of have, and line. As withPEM, it copies nothing else, since every user can
// read the copy.
func withKnownHosts(have, line []byte) []byte {
	all := bytes.Clone(line)
	for one := range bytes.Lines(have) {
		words := bytes.Fields(one)
		if isKnownHost(words) && !bytes.Equal(one, line) {
			all = append(append(all, bytes.Join(words, []byte(" "))...), '\n')
		}
	}
	return all
}

// isKnownHost reports whether words are a line of known_hosts: perhaps a marker, then hosts, the type of a key, and the
// key.
func isKnownHost(words [][]byte) bool {
	if len(words) > 0 && bytes.HasPrefix(words[0], []byte("@")) {
		words = words[1:]
	}
	if len(words) < 3 {
		return false
	}
	for _, prefix := range []string{"ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-"} {
		if bytes.HasPrefix(words[1], []byte(prefix)) {
			return true
		}
	}
	return false
}

// withSSHConfig returns the configuration of OpenSSH have, with our file of known hosts. It returns nil, so that
// nothing is copied, if have names such files itself, or has a line that is not one of ssh_config(5).
func withSSHConfig(have []byte) []byte {
	all := []byte(sshSetting + " " + strings.Join(sshKnown, " ") + " " + plan.SSHHosts + "\n")
	known := sshSettings()
	for one := range bytes.Lines(have) {
		line := bytes.TrimSpace(one)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		word, _, _ := strings.Cut(strings.ReplaceAll(strings.ReplaceAll(string(line), "=", " "), "\t", " "), " ")
		word = strings.ToLower(word)
		if word == strings.ToLower(sshSetting) || !known[word] {
			return nil
		}
		all = append(append(all, line...), '\n')
	}
	return all
}

// sshSettings returns the settings of ssh_config(5), in lower case.
func sshSettings() map[string]bool {
	const all = `addkeystoagent addressfamily batchmode bindaddress bindinterface canonicaldomains
		canonicalizefallbacklocal canonicalizehostname canonicalizemaxdots canonicalizepermittedcnames
		casignaturealgorithms certificatefile
		channeltimeout checkhostip ciphers clearallforwardings compression connectionattempts connecttimeout controlmaster
		controlpath controlpersist dynamicforward enableescapecommandline enablesshkeysign escapechar exitonforwardfailure
		fingerprinthash forkafterauthentication forwardagent forwardx11 forwardx11timeout forwardx11trusted gatewayports
		gssapiauthentication gssapiclientidentity gssapidelegatecredentials gssapikexalgorithms gssapikeyexchange
		gssapirenewalforcesrekey gssapiserveridentity gssapitrustdns hashknownhosts host hostbasedacceptedalgorithms
		hostbasedauthentication hostkeyalgorithms hostkeyalias hostname identitiesonly identityagent identityfile
		ignoreunknown include ipqos kbdinteractiveauthentication kbdinteractivedevices kexalgorithms knownhostscommand
		localcommand localforward loglevel logverbose macs match nohostauthenticationforlocalhost numberofpasswordprompts
		obscurekeystroketiming passwordauthentication permitlocalcommand permitremoteopen pkcs11provider port
		preferredauthentications proxycommand proxyjump proxyusefdpass pubkeyacceptedalgorithms pubkeyauthentication
		rekeylimit remotecommand remoteforward requesttty requiredrsasize revokedhostkeys securitykeyprovider sendenv
		serveralivecountmax serveraliveinterval sessiontype setenv stdinnull streamlocalbindmask streamlocalbindunlink
		stricthostkeychecking syslogfacility tag tcpkeepalive tunnel tunneldevice updatehostkeys user userknownhostsfile
		verifyhostkeydns versionaddendum visualhostkey xauthlocation`
	set := map[string]bool{}
	for word := range strings.FieldsSeq(all) {
		set[word] = true
	}
	return set
}

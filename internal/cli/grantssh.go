package cli

import (
	"context"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // of hashed known_hosts, which have no other
	"encoding/base64"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
)

// maxKnownHosts is the maximum size of a file of known hosts that is read, in bytes.
const maxKnownHosts = 16 << 20

// loginFlags are the flags of a grant for SSH.
type loginFlags struct {
	ssh, readOnly bool
	user          string
	hostKeys      []string
}

func (l *loginFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&l.ssh, "ssh", false, "the secret is a private key for git over SSH (default for keys)")
	f.StringVar(&l.user, "ssh-user", "", "log in over SSH as `USER` (default: git)")
	f.StringArrayVar(&l.hostKeys, "host-key", nil,
		"accept `KEY` of the SSH server: SHA256:..., a line of known_hosts, - for stdin; repeatable")
	f.BoolVar(&l.readOnly, "read-only", false, "over SSH, allow to clone and fetch, but not to push")
}

// fill adds to an item what the flags say.
func (l *loginFlags) fill(name string, i *grant.Item) error {
	switch {
	case !l.ssh && l.user == "" && (l.readOnly || l.hostKeys != nil):
		return &usageError{msg: "grant " + name + ": --read-only and --host-key are for SSH", hint: "add --ssh"}
	case !l.ssh && l.user == "":
		return nil
	case l.readOnly && i.Methods != nil:
		return usagef("grant %s: --read-only does not go with --method", name)
	case l.readOnly:
		i.Methods = []string{grant.GitFetch}
	}
	i.Sites = append(i.Sites, grant.SiteItem{In: string(grant.InSSH), Name: l.user})
	i.HostKeys = l.hostKeys
	return nil
}

// completeSSH completes the flags of a grant: the site of a secret that is a private key, and the keys of the hosts,
// from the flags or else from the user's known_hosts.
func (a *app) completeSSH(ctx context.Context, g *granting) error {
	if !g.ssh && g.user == "" && !a.isKey(ctx, g) {
		return nil
	}
	g.ssh = true
	i, err := g.item()
	if err != nil {
		return err
	}
	ports := i.Ports
	if ports == nil {
		ports = []uint16{22}
	}
	if g.hostKeys == nil {
		g.hostKeys, err = userHostKeys(i.Hosts, ports)
		return err
	}
	var all []string
	for _, text := range g.hostKeys {
		switch words := strings.Fields(text); {
		case text == "-":
			b, err := readKnownHosts(a.stdin)
			if err != nil {
				return err
			}
			keys, err := sharedKeys(b, i.Hosts, ports)
			if err != nil {
				return err
			}
			if len(keys) == 0 {
				return fault.New(fault.Invalid, "stdin has no key of %s", strings.Join(i.Hosts, ", ")).
					WithHint("as in: ssh-keyscan HOST | coppice grant NAME GRANT --host HOST --host-key -")
			}
			all = append(all, keys...)
		case len(words) >= 3 && strings.HasPrefix(words[2], "AAAA"): // a line of known_hosts
			all = append(all, words[1]+" "+words[2])
		case len(words) >= 2:
			all = append(all, words[0]+" "+words[1])
		default:
			all = append(all, text)
		}
	}
	g.hostKeys = all
	return nil
}

// isKey reports whether the secret of a grant without sites is a private key, as far as the broker of this machine
// knows.
func (a *app) isKey(ctx context.Context, g *granting) bool {
	i, err := g.item()
	home, herr := a.home()
	if err != nil || herr != nil || i.Sites != nil || i.Preset != "" || a.getenv("COPPICE_HOST") != "" {
		return false
	}
	list, err := brokerOf(home).List(ctx)
	name := i.Secret
	if name == "" {
		name = g.name
	}
	return err == nil && slices.ContainsFunc(list, func(s storedSecret) bool {
		return s.Name == name && s.Kind == string(grant.SSH)
	})
}

// userHostKeys returns the keys of hosts in the files of known hosts of the user and the system.
func userHostKeys(hosts []string, ports []uint16) ([]string, error) {
	files := []string{"/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"}
	if home, err := os.UserHomeDir(); err == nil {
		files = append([]string{filepath.Join(home, ".ssh/known_hosts"), filepath.Join(home, ".ssh/known_hosts2")}, files...)
	}
	var all []byte
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			continue // most are missing
		}
		b, err := readKnownHosts(f)
		f.Close()
		if err != nil {
			return nil, err
		}
		all = append(append(all, b...), '\n')
	}
	for _, h := range hosts {
		if len(knownKeys(all, []string{h}, ports)) == 0 {
			return nil, fault.New(fault.Invalid, "the key of host %s is not in your known_hosts", h).
				WithHint("get it, compare it with what the host publishes, and pass it: "+
					"ssh-keyscan %[1]s | coppice grant NAME GRANT --host %[1]s --host-key -", h)
		}
	}
	return sharedKeys(all, hosts, ports)
}

// sharedKeys returns the keys in text that all hosts have at all ports, or an error if there are none: with a key of
// only one of them, that one could pass for another.
func sharedKeys(text []byte, hosts []string, ports []uint16) ([]string, error) {
	all := knownKeys(text, hosts, ports)
	shared := slices.Clone(all)
	for _, h := range hosts {
		for _, p := range ports {
			has := knownKeys(text, []string{h}, []uint16{p})
			shared = slices.DeleteFunc(shared, func(k string) bool { return !slices.Contains(has, k) })
		}
	}
	if len(all) > 0 && len(shared) == 0 {
		return nil, fault.New(fault.Invalid, "the hosts %s have different keys", strings.Join(hosts, ", ")).
			WithHint("give a grant for each host and port")
	}
	return shared, nil
}

func readKnownHosts(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxKnownHosts+1))
	if err == nil && len(b) > maxKnownHosts {
		err = fault.New(fault.TooLarge, "known_hosts is larger than %d MiB", maxKnownHosts>>20)
	}
	return b, fault.Wrap(err, "read known_hosts")
}

// knownKeys returns the keys of hosts in text, which is in the format of known_hosts (sshd(8)), without those that it
// revokes. It ignores authorities, which certify keys of hosts, and lines that it does not understand.
func knownKeys(text []byte, hosts []string, ports []uint16) (keys []string) {
	var revoked []string
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		revokes := len(words) > 0 && words[0] == "@revoked"
		if revokes {
			words = words[1:]
		}
		if len(words) < 3 || strings.HasPrefix(words[0], "@") || strings.HasPrefix(words[0], "#") {
			continue
		}
		key := words[1] + " " + words[2]
		if _, err := grant.ParseHostKey(key); err != nil {
			continue
		}
		for _, h := range hosts {
			for _, p := range ports {
				name := strings.ToLower(h)
				if p != 22 {
					name = "[" + name + "]:" + strconv.Itoa(int(p))
				}
				switch {
				case !knownAs(words[0], name):
				case revokes:
					revoked = append(revoked, key)
				case !slices.Contains(keys, key):
					keys = append(keys, key)
				}
			}
		}
	}
	return slices.DeleteFunc(keys, func(k string) bool { return slices.Contains(revoked, k) })
}

// knownAs reports whether the first field of a line of known_hosts names a host: it is a hash, or a list of patterns.
func knownAs(field, name string) bool {
	if coded, ok := strings.CutPrefix(field, "|1|"); ok {
		salt, sum, _ := strings.Cut(coded, "|")
		s, err := base64.StdEncoding.DecodeString(salt)
		want, werr := base64.StdEncoding.DecodeString(sum)
		mac := hmac.New(sha1.New, s)
		mac.Write([]byte(name))
		return err == nil && werr == nil && hmac.Equal(mac.Sum(nil), want)
	}
	is := false
	for pattern := range strings.SplitSeq(strings.ToLower(field), ",") {
		pattern, not := strings.CutPrefix(pattern, "!")
		wild := strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(regexp.QuoteMeta(pattern))
		if match, err := regexp.MatchString("^(?:"+wild+")$", name); err != nil || !match {
			continue
		}
		if not {
			return false
		}
		is = true
	}
	return is
}

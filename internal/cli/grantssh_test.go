//go:build linux

package cli_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// sshLab is a lab whose hosts are SSH servers for one key, with repositories of git.
type sshLab struct {
	*grantLab
	keys  string // directory of the keys: user, host and other
	repos string // path of the repositories: acme/repo.git and acme/other.git
	body  string // a line of the private key, which is the secret
}

// newSSHLab creates the lab. Its grants log in as root, the only user that is sure to exist.
func newSSHLab(t *testing.T) *sshLab {
	for _, p := range []string{"/usr/sbin/sshd", "ssh", "git", "ssh-agent"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("needs sshd: to be a host of git over SSH")
		}
	}
	l := newLab(t)
	s := &sshLab{grantLab: &grantLab{lab: l}, keys: filepath.Join(l.root, "keys"), repos: filepath.Join(l.root, "repos")}
	t.Cleanup(func() { _ = killBroker(l.dir) })
	s.host(`mkdir -p "$1" "$2/acme"
for key in user host other; do ssh-keygen -q -t ed25519 -N '' -C "$key key" -f "$1/$key"; done
cp "$1/user.pub" "$1/authorized"
git init -q --bare -b main "$2/acme/repo.git"
git init -q -b main "$1/work"
cd "$1/work"
echo 'hello by ssh' >greeting
git add .
git -c user.name=l -c user.email=l@lab.test commit -qm first
git push -q "$2/acme/repo.git" HEAD:main
git clone -q --bare "$2/acme/repo.git" "$2/acme/other.git"
cat >"$1/config" <<END
Port 22
HostKey $1/host
AuthorizedKeysFile $1/authorized
PermitRootLogin yes
PasswordAuthentication no
StrictModes no
UsePAM no
AcceptEnv GIT_PROTOCOL
PidFile none
END
chmod -R a+rX "$2"`, s.keys, s.repos)
	key, err := os.ReadFile(filepath.Join(s.keys, "user"))
	if err != nil {
		t.Fatal(err)
	}
	s.body = strings.Split(string(key), "\n")[3]
	s.start(nil, "nsenter", "--target", strconv.Itoa(s.far), "--net", "--", "sh", "-ec", `
/usr/sbin/sshd -D -f "$1/config" -E "$1/log" & p=$!
until grep -q 'listening on 0.0.0.0' "$1/log" 2>/dev/null; do kill -0 $p; sleep 0.05; done
echo ready
cat
kill $p
wait $p || true`, "sh", s.keys)
	return s
}

// with returns the lab for a subtest.
func (s *sshLab) with(t *testing.T) *sshLab {
	return &sshLab{s.grantLab.with(t), s.keys, s.repos, s.body}
}

// host runs a script on the test's machine.
func (s *sshLab) host(script string, args ...string) string {
	s.t.Helper()
	cmd := exec.Command("sh", append([]string{"-ec", script, "sh"}, args...)...)
	cmd.Env = append(s.env, noConfig...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// known makes the user know the key of a host.
func (s *sshLab) known(host, key string) {
	s.t.Helper()
	pub, err := os.ReadFile(filepath.Join(s.keys, key+".pub"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(".ssh/known_hosts", host+" "+string(pub))
}

// stored stores the key as the secret deploy.
func (s *sshLab) stored() {
	s.t.Helper()
	f, err := os.Open(filepath.Join(s.keys, "user"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	if out, err := s.feed(f, "secret", "set", "deploy", "--kind", "ssh"); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
}

// refused runs a script in the sandbox, which must fail, and say why.
func (s *sshLab) refused(script, why string) {
	s.t.Helper()
	if out, err := s.in(sandbox, script); err == nil || !strings.Contains(out, why) {
		s.t.Errorf("%s: %v: %s; want %q", script, err, out, why)
	}
}

const sshURL = "ssh://root@git.lab.test"

// TestGrants_OverSSH grants a private key for one repository, and uses git and ssh in the sandbox, which has no key.
func TestGrants_OverSSH(t *testing.T) {
	t.Parallel()
	s := newSSHLab(t)
	repo := s.repos + "/acme/repo.git"
	s.stored()
	create := "deploy,ssh-user=root,host=git.lab.test,path=" + repo
	out, err := s.try("create", sandbox, "--from", "host", "--no-repo", "--grant", create)
	if err == nil || !strings.Contains(out, "ssh-keyscan git.lab.test") {
		t.Fatalf("an unknown host: %v: %s", err, out)
	}
	s.known("git.lab.test", "host")
	s.box("--grant", create)

	t.Run("clone and push", func(t *testing.T) {
		s := s.with(t)
		out := s.mustIn(sandbox, `cd; rm -rf c; git clone -q `+sshURL+repo+` c; cat c/greeting; cd c; echo more >>greeting
git -c user.name=l -c user.email=l@lab.test commit -qam more; git push -q origin HEAD:refs/heads/more
git ls-remote `+sshURL+strings.TrimSuffix(repo, ".git")+` more`)
		if !strings.Contains(out, "hello by ssh") || !strings.Contains(out, "refs/heads/more") {
			t.Errorf("%s", out)
		}
		s.host(`git -C "$1" rev-parse --verify more`, repo)
		ev := s.told("a use", func(ev wire.NetEvent) bool {
			return ev.Kind == wire.NetHTTP && ev.Method == "GIT-RECEIVE-PACK" && len(ev.Grants) == 1
		})
		if ev.Name != "git.lab.test" || ev.Path != repo || ev.Grants[0] != "deploy" {
			t.Errorf("%+v", ev)
		}
		if g := s.grant(sandbox); g.Used < 3 || g.Placeholder != "" || len(g.HostKeys) != 1 || g.Sites[0] != "ssh:root" {
			t.Errorf("%+v", g)
		}
	})

	t.Run("with the host in known_hosts", func(t *testing.T) {
		s := s.with(t)
		pub, err := os.ReadFile(filepath.Join(s.keys, "host.pub"))
		if err != nil {
			t.Fatal(err)
		}
		s.mustIn(sandbox, `cd; echo 'git.lab.test `+strings.TrimSpace(string(pub))+`' >known
GIT_SSH_COMMAND="ssh -o UserKnownHostsFile=$HOME/known -o StrictHostKeyChecking=yes" git ls-remote `+sshURL+repo)
	})

	t.Run("refused", func(t *testing.T) {
		s := s.with(t)
		const ssh = "ssh -o BatchMode=yes root@git.lab.test "
		s.refused("git ls-remote "+sshURL+s.repos+"/acme/other.git", "does not allow")
		s.refused("git ls-remote "+sshURL+s.repos+"/acme/../acme/repo.git", "read in another way")
		s.refused("git ls-remote ssh://git@git.lab.test"+repo, "is for user root")
		s.refused(ssh+`id`, "not one of git to fetch or push")
		s.refused(ssh+`"git-upload-pack '`+repo+`'; id"`, "read in another way")
		s.refused(ssh+`</dev/null`, "not a shell")
		s.refused("ssh -tt -o BatchMode=yes root@git.lab.test", "PTY allocation request failed")
		s.refused("ssh -o BatchMode=yes -s root@git.lab.test sftp", "not a subsystem")
		s.refused("ssh -o BatchMode=yes -W 127.0.0.1:22 root@git.lab.test", "does not forward")
		s.refused("ssh -o BatchMode=yes -o ExitOnForwardFailure=yes -N -R 7777:127.0.0.1:22 root@git.lab.test",
			"remote port forwarding failed")
		if out, err := s.in(sandbox, `code=0; `+ssh+`id || code=$?; echo "<$code>"`); !strings.Contains(out, "<128>") {
			t.Errorf("%v: %s", err, out)
		}
		// An agent is not forwarded, but does not matter to git.
		s.mustIn(sandbox, `eval "$(ssh-agent)" >/dev/null; trap 'ssh-agent -k >/dev/null' EXIT
GIT_SSH_COMMAND="ssh -A" git ls-remote `+sshURL+repo)
		s.told("forwarding of the agent", func(ev wire.NetEvent) bool {
			return ev.Kind == wire.NetDeny && strings.Contains(ev.Reason, "auth-agent-req")
		})
	})

	t.Run("no key in the home", func(t *testing.T) {
		s := s.with(t)
		err := filepath.WalkDir(s.dir, func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed meanwhile
			}
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			b, err := os.ReadFile(path)
			if strings.Contains(string(b), s.body) {
				t.Errorf("%s has the private key", path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})

	t.Run("read-only", func(t *testing.T) {
		s := s.with(t)
		s.run("grant", sandbox, "deploy", "--ssh-user", "root", "--host", "git.lab.test", "--read-only")
		s.mustIn(sandbox, "git ls-remote "+sshURL+repo)
		s.refused("cd ~/c; git push origin HEAD:refs/heads/less", "does not allow git-receive-pack")
	})

	t.Run("another key of the host", func(t *testing.T) {
		s := s.with(t)
		s.known("git.lab.test", "other")
		s.run("grant", sandbox, "deploy", "--ssh-user", "root", "--host", "git.lab.test")
		s.refused("git ls-remote "+sshURL+repo, "coppice: ")
		out := strings.Fields(s.host(`ssh-keygen -lf "$1/other.pub"`, s.keys))
		s.run("grant", sandbox, "deploy", "--ssh-user", "root", "--host", "git.lab.test", "--host-key", out[1])
		s.refused("git ls-remote "+sshURL+repo, "the key of the host is SHA256:")
	})

	t.Run("revoked", func(t *testing.T) {
		s := s.with(t)
		s.known("git.lab.test", "host")
		s.run("grant", sandbox, "deploy", "--ssh-user", "root", "--host", "git.lab.test", "--path", repo)
		before := s.grant(sandbox).Used
		ended := make(chan string, 1)
		go func() {
			out, err := s.in(sandbox, `sleep 1000 | ssh root@git.lab.test "git-upload-pack '`+repo+`'" || echo "<cut>"`)
			ended <- out + " " + errText(err)
		}()
		for deadline := time.Now().Add(patience); s.grant(sandbox).Used == before; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("git did not start")
			}
		}
		s.notInMemory()
		s.run("revoke", sandbox, "deploy")
		s.told("the cut", func(ev wire.NetEvent) bool {
			return ev.Kind == wire.NetEnd && strings.Contains(ev.Reason, "grant deploy was revoked")
		})
		s.refused("git ls-remote "+sshURL+repo, "was revoked")
		s.run("stop", sandbox) // ends sleep
		<-ended
	})
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestGrants_SSHAgent logs in with a key of the owner's agent.
func TestGrants_SSHAgent(t *testing.T) {
	t.Parallel()
	s := newSSHLab(t)
	repo := s.repos + "/acme/repo.git"
	s.known("git.lab.test", "host")
	socket := filepath.Join(s.root, "agent")
	s.start(nil, "sh", "-ec", `ssh-agent -D -a "$1" >/dev/null & p=$!
until [ -S "$1" ]; do kill -0 $p; sleep 0.05; done
SSH_AUTH_SOCK=$1 ssh-add -q "$2/user" "$2/other" 2>/dev/null
echo ready
cat
kill $p
wait $p || true`, "sh", socket, s.keys)
	if out, err := s.try("secret", "set", "deploy", "--from", "ssh-agent:user key"); err == nil ||
		!strings.Contains(out, "no SSH agent") {
		t.Fatalf("%v: %s", err, out)
	}
	s.env = append(s.env, "SSH_AUTH_SOCK="+socket)
	s.run("secret", "set", "deploy", "--from", "ssh-agent:user key")
	sum := strings.Fields(s.host(`ssh-keygen -lf "$1/user.pub"`, s.keys))[1]
	if out := s.run("secret", "ls"); !strings.Contains(out, "ssh-agent:"+sum) {
		t.Errorf("%s", out)
	}
	s.box("--grants-later", "--allow", "git.lab.test:22")
	s.run("grant", sandbox, "deploy", "--ssh-user", "root", "--host", "git.lab.test", "--path", repo)
	s.mustIn(sandbox, `cd; git clone -q `+sshURL+repo+` c; cat c/greeting`)
	s.host(`SSH_AUTH_SOCK=$1 ssh-add -q -d "$2/user.pub" 2>&1`, socket, s.keys)
	s.refused("git ls-remote "+sshURL+repo, "the SSH agent has no key")
}

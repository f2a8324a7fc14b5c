package broker

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net"
	"path/filepath"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secret/line"
	"github.com/coppice-dev/coppice/internal/secret/sshkey"
	"github.com/coppice-dev/coppice/internal/secret/store"
)

// agentPatience is how long the broker waits for an SSH agent, which may ask its user. Gates wait longer.
const agentPatience = 10 * time.Second

// sign signs a login, or returns the public key. It reports whether the question is answered.
func (b *broker) sign(ctx context.Context, box *box, l *line.Server, ask line.Ask, g *granted) (bool, error) {
	if g.User == "" {
		return false, fault.New(fault.Denied, "grant %s is not for SSH", g.Name)
	}
	s, err := b.catalog.signer(ctx, g.Secret)
	if err != nil {
		return false, err
	}
	defer s.Close()
	if len(ask.Data) == 0 {
		return b.send(box, l, ask, g, line.Value{Bytes: s.PublicKey().Marshal()}, time.Time{})
	}
	algorithm, err := sshkey.CheckLogin(ask.Data, g.User, s.PublicKey())
	if err != nil {
		return false, err
	}
	signature, err := s.SignWithAlgorithm(rand.Reader, ask.Data, algorithm)
	if err != nil || signature.Format != algorithm { // some agents sign with SHA-1 all the same
		return false, fault.New(fault.Unavailable, "the key of secret %s did not sign", g.Secret).
			WithHint("find out why: coppice secret test %s", g.Secret)
	}
	return b.send(box, l, ask, g, line.Value{Bytes: ssh.Marshal(signature)}, time.Time{})
}

// signer is a private key, perhaps in an agent. Close ends its use.
type signer struct {
	ssh.AlgorithmSigner
	io.Closer
}

// signer returns the private key of a secret.
func (c *catalog) signer(ctx context.Context, name string) (signer, error) {
	e, v, err := c.values.Entry(name)
	if err != nil {
		return signer{}, err
	}
	defer v.Close()
	if cmp.Or(e.From, "age") == "age" {
		key, err := sshkey.Parse(v.Bytes())
		return signer{key, io.NopCloser(nil)}, fault.Wrap(err, "secret %s", name)
	}
	to, err := parseReference(name, v.Bytes())
	if err != nil {
		return signer{}, err
	}
	want, _, _, _, err := ssh.ParseAuthorizedKey([]byte(to.Key))
	if err != nil {
		return signer{}, fault.New(fault.Denied, "secret %s is not a private key of SSH", name).
			WithHint("set it: coppice secret set %s --kind ssh", name)
	}
	c.mu.Lock()
	env := c.env
	c.mu.Unlock()
	s, err := agentKey(ctx, env, ssh.FingerprintSHA256(want))
	return s, fault.Wrap(err, "secret %s", name)
}

// referAgent finds a key in the owner's agent, and returns the reference to it and the source as it is stored: another
// key that gets the same comment later is not that key.
func referAgent(ctx context.Context, s store.Source, env []string) (ref []byte, from string, err error) {
	key, err := agentKey(ctx, env, s.Ref.Name)
	if err != nil {
		return nil, "", err
	}
	defer key.Close()
	sum := ssh.FingerprintSHA256(key.PublicKey())
	ref, err = json.Marshal(reference{Length: len(key.PublicKey().Marshal()), Fingerprint: sum,
		Key: string(ssh.MarshalAuthorizedKey(key.PublicKey()))})
	return ref, "ssh-agent:" + sum, err
}

// fingerprintKey returns the fingerprint of a private key, as ssh-keygen -l prints it.
func fingerprintKey(value []byte) (string, error) {
	key, err := sshkey.Parse(value)
	if err != nil {
		return "", err
	}
	return ssh.FingerprintSHA256(key.PublicKey()), nil
}

// agentKey returns the key with a fingerprint or comment in the SSH agent of an environment.
func agentKey(ctx context.Context, env []string, name string) (s signer, err error) {
	path := lookup(env, "SSH_AUTH_SOCK")
	if !filepath.IsAbs(path) {
		return s, fault.New(fault.Unavailable, "no SSH agent is known").
			WithHint("test the secret in a shell that has SSH_AUTH_SOCK: coppice secret test NAME")
	}
	late := time.Now().Add(agentPatience)
	conn, err := (&net.Dialer{Deadline: late}).DialContext(ctx, "unix", path)
	if err == nil {
		err = conn.SetDeadline(late)
	}
	if err != nil {
		return s, fault.New(fault.Unavailable, "the SSH agent cannot be reached").Because(err).
			WithHint("start it, and test the secret in a shell that knows it: coppice secret test NAME")
	}
	defer func() {
		if s.Closer == nil {
			conn.Close()
		}
	}()
	held := agent.NewClient(conn)
	list, err := held.List()
	if err != nil {
		return s, fault.New(fault.Unavailable, "the SSH agent does not answer").Because(err)
	}
	var found *agent.Key
	for _, k := range list {
		if ssh.FingerprintSHA256(k) != name && k.Comment != name {
			continue
		}
		if found != nil {
			return s, fault.New(fault.Invalid, "several keys of the SSH agent have the comment %.80q", name).
				WithHint("name the fingerprint: ssh-add -l")
		}
		found = k
	}
	if found == nil {
		return s, fault.New(fault.Unavailable, "the SSH agent has no key %.80q", name).
			WithHint("add it: ssh-add FILE; ssh-add -l lists them")
	}
	key, err := ssh.ParsePublicKey(found.Blob)
	if err != nil || sshkey.Algorithms(key) == nil {
		return s, fault.New(fault.Unsupported, "a key of type %.40q is not supported", found.Format).
			WithHint("use a key of type ed25519, ecdsa or rsa")
	}
	return signer{agentSigner{held, key}, conn}, nil
}

// agentSigner signs by an agent.
type agentSigner struct {
	agent agent.ExtendedAgent
	key   ssh.PublicKey
}

func (a agentSigner) PublicKey() ssh.PublicKey { return a.key }

func (a agentSigner) Sign(rand io.Reader, data []byte) (*ssh.Signature, error) {
	return a.SignWithAlgorithm(rand, data, "")
}

func (a agentSigner) SignWithAlgorithm(_ io.Reader, data []byte, algorithm string) (*ssh.Signature, error) {
	var flags agent.SignatureFlags
	switch algorithm {
	case ssh.KeyAlgoRSASHA256:
		flags = agent.SignatureFlagRsaSha256
	case ssh.KeyAlgoRSASHA512:
		flags = agent.SignatureFlagRsaSha512
	}
	return a.agent.SignWithFlags(a.key, data, flags)
}

package sshkey

import (
	"bytes"
	"crypto/dsa" //nolint:staticcheck // to refuse it
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"slices"

	"golang.org/x/crypto/ssh"

	"github.com/coppice-dev/coppice/internal/fault"
)

// prefix begins the value of a secret that is a private key: the file of the key in base64, on one line.
const prefix = "coppice-ssh-key:"

// leastRSA is the minimum size of an RSA key, in bits.
const leastRSA = 2048

// IsFile reports whether b is the content of a file with a private key.
func IsFile(b []byte) bool {
	return bytes.HasPrefix(b, []byte("-----BEGIN ")) && bytes.Contains(b, []byte("PRIVATE KEY-----"))
}

// IsValue reports whether a value is that of a private key.
func IsValue(value []byte) bool { return bytes.HasPrefix(value, []byte(prefix)) }

// Value returns the value of a secret for the content of a file with a private key. Errors have no part of it.
func Value(file []byte) ([]byte, error) {
	if _, err := parse(file); err != nil {
		return nil, err
	}
	return base64.StdEncoding.AppendEncode([]byte(prefix), bytes.TrimSpace(file)), nil
}

// Parse returns the key that Value returned.
func Parse(value []byte) (ssh.AlgorithmSigner, error) {
	coded, ok := bytes.CutPrefix(value, []byte(prefix))
	file, err := base64.StdEncoding.AppendDecode(nil, coded)
	defer clear(file)
	if !ok || err != nil {
		return nil, fault.New(fault.Invalid, "the value is not a private key of SSH")
	}
	return parse(file)
}

func parse(file []byte) (ssh.AlgorithmSigner, error) {
	no := func(hint, format string, args ...any) (ssh.AlgorithmSigner, error) {
		return nil, fault.New(fault.Invalid, format, args...).WithHint("%s", hint)
	}
	key, err := ssh.ParseRawPrivateKey(file)
	if missing := new(ssh.PassphraseMissingError); errors.As(err, &missing) {
		return no("add it to your agent, and use that: ssh-add FILE; coppice secret set NAME --from ssh-agent:COMMENT",
			"the private key has a passphrase")
	}
	const hint = "use a key of type ed25519, ecdsa or rsa: ssh-keygen -t ed25519"
	if err != nil { // which may quote the key
		return no(hint, "the private key cannot be read")
	}
	switch k := key.(type) {
	case *dsa.PrivateKey:
		return no(hint, "keys of type DSA are not supported")
	case *rsa.PrivateKey:
		if k.N.BitLen() < leastRSA {
			return no(hint, "the RSA key has %d bits, less than %d", k.N.BitLen(), leastRSA)
		}
	}
	s, err := ssh.NewSignerFromKey(key)
	signer, ok := s.(ssh.AlgorithmSigner)
	if err != nil || !ok {
		return no(hint, "the private key cannot sign")
	}
	return signer, nil
}

// Algorithms returns the algorithms of signatures of a key, the best first: of RSA, none with SHA-1.
func Algorithms(key ssh.PublicKey) []string {
	switch key.Type() {
	case ssh.KeyAlgoRSA:
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	case ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKED25519,
		ssh.KeyAlgoSKECDSA256:
		return []string{key.Type()}
	}
	return nil
}

// CheckLogin returns the algorithm of the signature that data asks for, or Denied unless data is what a client signs to
// log in with key as user for a connection (RFC 4252, section 7), and nothing else: neither another protocol, such as
// the signature of a commit, nor another user.
func CheckLogin(data []byte, user string, key ssh.PublicKey) (algorithm string, err error) {
	no := func(why string) (string, error) {
		return "", fault.New(fault.Denied, "the data to sign is not a login: %s", why)
	}
	var m struct {
		Session   []byte
		Type      byte
		User      string
		Service   string
		Method    string
		Signs     bool
		Algorithm string
		Key       []byte
	}
	if ssh.Unmarshal(data, &m) != nil || !bytes.Equal(ssh.Marshal(m), data) { // the latter also refuses further data
		return no("it is malformed")
	}
	const userAuthRequest = 50
	switch {
	case len(m.Session) < 20 || len(m.Session) > 64: // a hash
		return no("it names no session")
	case m.Type != userAuthRequest || m.Service != "ssh-connection" || m.Method != "publickey" || !m.Signs:
		return no("it is another message")
	case m.User != user:
		return no("it is for another user")
	case !bytes.Equal(m.Key, key.Marshal()):
		return no("it is for another key")
	case !slices.Contains(Algorithms(key), m.Algorithm):
		return no("its algorithm is not allowed")
	}
	return m.Algorithm, nil
}

package inspect

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/policy"
)

const (
	// caFor is the validity of the authority's own certificate; the authority ends with its process.
	caFor = 10 * 365 * 24 * time.Hour
	// leafFor is the validity of a certificate for a name, and leafFresh how long it is reused, so that a reused
	// certificate is valid for some hours.
	leafFor   = 48 * time.Hour
	leafFresh = 24 * time.Hour
	// backdated allows for clock differences.
	backdated = time.Hour
)

// Authority issues certificates for names to one sandbox. Its key exists only in the memory of this process. It is
// safe for concurrent use.
type Authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	leaf *ecdsa.PrivateKey // one for all names

	mu     sync.Mutex
	leaves map[policy.Host]issued // guarded by mu
}

// issued is a certificate and its time of issue.
type issued struct {
	cert *tls.Certificate
	at   time.Time
}

// NewAuthority returns an authority with a new key.
func NewAuthority(now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fault.Wrap(err, "create the key of the gate's CA")
	}
	leaf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fault.Wrap(err, "create the key of the gate's certificates")
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Coppice gate of this sandbox"},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(caFor),
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		return nil, fault.Wrap(err, "create the certificate of the gate's CA")
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		return nil, fault.Wrap(err, "read the certificate of the gate's CA")
	}
	return &Authority{key: key, cert: c, leaf: leaf, leaves: map[policy.Host]issued{}}, nil
}

func serialNumber() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fault.Wrap(err, "create a serial number")
	}
	return n.Add(n, big.NewInt(1)), nil
}

// PEM returns the authority's certificate, for the trust stores of the sandbox.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Signer returns the key of the authority, for certificates of SSH.
func (a *Authority) Signer() crypto.Signer { return a.key }

// certify returns a certificate for name.
func (a *Authority) certify(name policy.Host, now time.Time) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x, ok := a.leaves[name]; ok && now.Sub(x.at) < leafFresh && !now.Before(x.at) {
		return x.cert, nil
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"Coppice gate"}},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(leafFor), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{name.String()},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, a.leaf.Public(), a.key)
	if err != nil {
		return nil, fault.Wrap(err, "create a certificate for %v", name)
	}
	if len(a.leaves) >= limit.Certificates {
		clear(a.leaves)
	}
	cert := &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: a.leaf}
	a.leaves[name] = issued{cert, now}
	return cert, nil
}

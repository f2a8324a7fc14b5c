package plan

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
)

// SSHHosts is the file by which the inside trusts the gate as an SSH server: it has KnownHosts.
const SSHHosts = TrustDir + "/ssh_known_hosts"

// spkiP256 is what a certificate has before the point of a public key on the curve P-256 (RFC 5480).
const spkiP256 = "3059301306072a8648ce3d020106082a8648ce3d030107034200"

// KnownHosts returns the line of known_hosts by which SSH trusts the hosts that the authority ca certifies: the gate
// has one authority for TLS and SSH, with one key. It is empty if ca is no certificate of a gate. It finds the key
// without crypto/x509, which would be most of init.
func KnownHosts(ca []byte) []byte {
	block, _ := pem.Decode(ca)
	prefix, err := hex.DecodeString(spkiP256)
	if block == nil || err != nil {
		return nil
	}
	const size = 65 // of an uncompressed point
	_, point, ok := bytes.Cut(block.Bytes, prefix)
	if !ok || len(point) < size {
		return nil
	}
	const kind = "ecdsa-sha2-nistp256" // RFC 5656
	var blob []byte
	for _, part := range [][]byte{[]byte(kind), []byte("nistp256"), point[:size]} {
		blob = append(binary.BigEndian.AppendUint32(blob, uint32(len(part))), part...)
	}
	return []byte("@cert-authority * " + kind + " " + base64.StdEncoding.EncodeToString(blob) + " coppice-gate\n")
}
